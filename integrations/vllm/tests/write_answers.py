"""Writes answers.json: what `moe_lab.RoE` computes in each case.

It runs in moe_lab's own environment:

    python -m integrations.vllm.tests.write_answers
"""

from __future__ import annotations

import json
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import moe_lab
from integrations.vllm.tests.cases import ANSWERS, CASES, Case
from integrations.vllm.tests.checkpoints import VOCABULARY, write
from moe_lab.engine.scoring import ScoringRequest
from moe_lab.routing import document_key
from moe_lab.tasks.toy.corpus import documents

Ids = list[int]


def prompts_of(case: Case, tokenizer: Any) -> list[Ids]:
    """Token ids of the prompts: texts of the embedded model's world, or random ids."""
    lengths = [case.length - 3 * (i % 5) for i in range(case.prompts)]
    numbers = np.random.default_rng(0)
    if case.model != "tiny":
        return [numbers.integers(VOCABULARY - 1, size=length).tolist() for length in lengths]
    text = tokenizer.encode(
        "\n".join(documents(seed=0, index=0, count=40)), add_special_tokens=False
    )
    starts = numbers.integers(len(text) - case.length, size=case.prompts)
    return [
        text[start : start + length] for start, length in zip(starts.tolist(), lengths, strict=True)
    ]


def answers_of(
    case: Case, prompts: list[Ids], new: int, model: Any, tokenizer: Any
) -> dict[str, Any]:
    """RoE's texts after the prompts and the prompts' log-likelihoods, and those of the base model.

    The noise of a log-likelihood has the key of the context. lm-eval's `vllm` model does not give
    vLLM the context. Then the noise has the key of the whole prompt.
    """
    roe = moe_lab.RoE(model, tokenizer, **case.options)
    base = moe_lab.RoE(model, tokenizer, n=1)
    keys = [document_key(prompt[: context_of(prompt)]) for prompt in prompts]
    return {
        "texts": generated(roe, prompts, new),
        "second_texts": generated(roe, prompts, new, answers=2),
        "base_texts": generated(base, prompts, new),
        "loglikelihoods": loglikelihoods(roe, prompts, keys),
        "base_loglikelihoods": loglikelihoods(base, prompts, keys),
        "loglikelihoods_by_whole_prompt": loglikelihoods(
            roe, prompts, [document_key(ids) for ids in prompts]
        ),
    }


def generated(roe: Any, prompts: list[Ids], new: int, answers: int = 1) -> list[Ids]:
    """The greedy texts. Of several answers to a prompt, the last one. Its noise has its own key."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    found = roe.model.generate(
        input_ids=ids,
        attention_mask=mask,
        custom_generate=roe,
        min_new_tokens=new,
        max_new_tokens=new,
        do_sample=True,
        top_k=1,  # a sample of one token is the greedy token
        num_return_sequences=answers,
        pad_token_id=0,
    )
    return found[answers - 1 :: answers, width:].tolist()


def context_of(prompt: Ids) -> int:
    """Tokens of the context; the others, the last third, are scored."""
    return len(prompt) - len(prompt) // 3


def loglikelihoods(roe: Any, prompts: list[Ids], keys: list[int]) -> list[float]:
    cuts = [(prompt[: context_of(prompt)], prompt[context_of(prompt) :]) for prompt in prompts]
    requests = [
        ScoringRequest(context, [rest], key)
        for (context, rest), key in zip(cuts, keys, strict=True)
    ]
    found: dict[int, float] = {}
    with roe.lm.running():
        roe._engine.score(requests, lambda i, scores: found.update({i: scores[0][0]}))
    return [found[i] for i in range(len(prompts))]


def loaded(name: str) -> tuple[Any, Any, str]:
    """Model, tokenizer, and a fingerprint of the checkpoint."""
    tiny, tokenizer = moe_lab.tiny()
    if name == "tiny":
        return tiny.float(), tokenizer, ""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), name)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        return model, tokenizer, fingerprint(Path(folder))


def fingerprint(folder: Path) -> str:
    return sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def main() -> None:
    models = {name: loaded(name) for name in {case.model for case in CASES.values()}}
    stored = {}
    for name, case in CASES.items():
        model, tokenizer, weights = models[case.model]
        prompts = prompts_of(case, tokenizer)
        answers = answers_of(case, prompts, case.new, model, tokenizer)
        changed = sum(
            one != other for one, other in zip(answers["texts"], answers["base_texts"], strict=True)
        )
        print(f"{name}: {changed} of {case.prompts} texts are not those of the base model")
        contexts = [context_of(prompt) for prompt in prompts]
        stored[name] = {"weights": weights, "prompts": prompts, "contexts": contexts} | answers
    lines = [f"{json.dumps(name)}: {json.dumps(stored[name])}" for name in stored]
    ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
