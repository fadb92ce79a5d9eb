"""Documents as data sets have them, for tests of several tasks."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_ROWS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
PROBLEMS: list[dict[str, Any]] = _ROWS["PROBLEMS"]
OPENBOOKQA, SOCIAL_IQA, HELLASWAG, SCIQ = (
    _ROWS[name] for name in "OPENBOOKQA SOCIAL_IQA HELLASWAG SCIQ".split()
)
PIQA, WINOGRANDE, WIC, COPA = (_ROWS[name] for name in "PIQA WINOGRANDE WIC COPA".split())
KNOWREF = _ROWS["KNOWREF"]
BIGBENCH = _ROWS["BIGBENCH"]


def write_vectors(texts: Sequence[str], embed: Callable[[list[str]], Any], path: Path) -> None:
    """A file for `method.embeddings=`, as docs/c3po.md describes it; `embed`
    gives the rows of all texts."""
    import torch
    from safetensors.torch import save_file

    keys = [list(hashlib.sha256(text.encode()).digest()) for text in texts]
    vectors = torch.as_tensor(embed(list(texts))).float()
    save_file({"vectors": vectors, "sha256": torch.tensor(keys, dtype=torch.uint8)}, path)


def evaluated(tasks: Any, answer: Callable[[Any], str], **options: Any) -> dict[str, Any]:
    """lm-eval's results where the model answers each request with `answer(request)`."""
    from lm_eval.api.model import LM
    from lm_eval.evaluator import evaluate

    from moe_lab.tasks.lm_eval_versions.logged_samples import logged_samples

    class Model(LM):
        tokenizer_name = "own"

        def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
            assert not add_generation_prompt, "the prompt begins the answer"
            return "".join(message["content"] for message in chat_history)

        def generate_until(self, requests: list[Any]) -> list[str]:
            return list(map(answer, requests))

        def loglikelihood(self, requests: list[Any]) -> list[Any]:
            raise AssertionError("not asked")

        loglikelihood_rolling = loglikelihood

    options = {"confirm_run_unsafe_code": True, "bootstrap_iters": 0} | options
    results = evaluate(lm=Model(), task_dict=tasks, **options)
    assert results is not None
    return {**results, "samples": logged_samples(tasks["tasks"], results["samples"])}
