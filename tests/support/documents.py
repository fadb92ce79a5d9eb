"""Documents as data sets have them, for tests of several tasks."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PROBLEMS: list[dict[str, Any]] = [
    {
        "task_id": "own/0",
        "prompt": 'def double(x):\n    """Twice x."""\n',
        "entry_point": "double",
        "canonical_solution": "    return 2 * x\n",
        "test": "def check(candidate):\n    assert candidate(3) == 6\n    assert candidate('ab') == 'abab'\n",
    },
    {
        "task_id": "own/1",
        "prompt": 'from math import gcd\n\n\ndef coprime(a: int, b: int) -> bool:\n    """Whether a and b are coprime."""\n',
        "entry_point": "coprime",
        "canonical_solution": "    return gcd(a, b) == 1\n",
        "test": "def check(candidate):\n    assert candidate(4, 9)\n    assert not candidate(4, 6)\n",
    },
    {
        "task_id": "own/2",
        "prompt": 'def mean(values):\n    """The mean of a list of numbers."""\n',
        "entry_point": "mean",
        "canonical_solution": "    return sum(values) / len(values)\n",
        "test": "import numpy as np\n\n\ndef check(candidate):\n    assert np.allclose(candidate([1, 2, 4]), 7 / 3)\n",
    },
]
OPENBOOKQA = {
    "id": "1",
    "question_stem": "Ice is",
    "choices": {"text": ["hot", "cold", "loud", "old"], "label": ["A", "B", "C", "D"]},
    "answerKey": "B",
}
SOCIAL_IQA = {
    "context": "Ann lost her keys.",
    "question": "What will Ann do next?",
    "answerA": "sleep",
    "answerB": "search",
    "answerC": "sing",
    "label": "2",
}
HELLASWAG = {
    "activity_label": "Cooking",
    "ctx_a": "A pot boils.",
    "ctx_b": "the cook",
    "ctx": "A pot boils. the cook",
    "endings": ["runs.", "stirs it.", "reads.", "swims."],
    "label": "1",
}
SCIQ = {
    "question": "What is wet?",
    **{f"distractor{i}": text for i, text in enumerate(("fire", "sand", "iron"), start=1)},
    "correct_answer": "water",
    "support": "",
}
PIQA = {"goal": "Boil water.", "sol1": "Freeze it.", "sol2": "Heat it.", "label": 1}
WINOGRANDE = {
    "sentence": "Sandra thanked Sam because _ had helped.",
    "option1": "Sandra",
    "option2": "Sam",
    "answer": "2",
}
WIC = {"word": "place", "sentence1": "My place.", "sentence2": "A place.", "idx": 0, "label": 1}
WIC |= {"start1": 3, "end1": 8, "start2": 2, "end2": 7}
COPA = {
    "premise": "It rained.",
    "choice1": "Sun.",
    "choice2": "Wet.",
    "question": "effect",
    "idx": 0,
    "label": 1,
}
KNOWREF = {"sentence": "Ann met Eve when [she] left.", "candidate0": "Ann", "candidate1": "Eve", "label": 1}
BIGBENCH = {
    "inputs": "Q: Is ice cold?\nA:",
    "targets": ["Yes"],
    "multiple_choice_targets": ["Yes", "No"],
    "multiple_choice_scores": [1, 0],
}


def write_vectors(texts: Sequence[str], embed: Callable[[list[str]], Any], path: Path) -> None:
    """A file for `method.embeddings=`, as docs/c3po.md describes it; `embed` gives the rows of all texts."""
    import torch
    from safetensors.torch import save_file

    keys = [list(hashlib.sha256(text.encode()).digest()) for text in texts]
    vectors = torch.as_tensor(embed(list(texts))).float()
    save_file({"vectors": vectors, "sha256": torch.tensor(keys, dtype=torch.uint8)}, path)


def evaluated(tasks: Any, answer: Callable[[Any], str], **options: Any) -> dict[str, Any]:
    """lm-eval's results where the model answers each request with `answer(request)`."""
    from lm_eval.api.model import LM
    from lm_eval.evaluator import evaluate

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
    return dict(results)
