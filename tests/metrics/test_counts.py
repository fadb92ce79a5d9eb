"""Counts of whole batches against loops over single tokens, each request read alone by the model itself.

Broken by: padding that counts, a shared beginning that counts once for several documents, a prompt that counts once per
answer choice, a branch of a tree that is taken for another, a generated token that is not seen.
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from moe_lab.engine.forward.forward import observed
from moe_lab.engine.hf import Request
from moe_lab.engine.lm import EngineLM
from moe_lab.errors import ConfigError
from moe_lab.metrics.counts import PHASES, Counts, Routes, count
from moe_lab.metrics.registry import collaboration, load_balance
from moe_lab.results.logs import request_key
from moe_lab.routing import record
from tests.support.models import kv_cache_model, small_model
from tests.support.tiers import by_family

FAMILIES = ["olmoe", "mixtral", "qwen2_moe", "deepseek_v3", "gpt_oss", "gemma4_text", "llama4_text"]
SHARED = "These are the first words of many. "
NEW_TOKENS = 5

Asked = tuple[str, Request]


def choices(context: str, answers: Sequence[str]) -> list[Asked]:
    return [("loglikelihood", Request((context, answer))) for answer in answers]


def generated(prompt: str) -> list[Asked]:
    options = {"do_sample": False, "max_gen_toks": NEW_TOKENS, "until": []}
    return [("generate_until", Request((prompt, options)))]


DOCUMENTS: list[list[Asked]] = [
    choices(SHARED + "One", [" red", " reddish", " blue"]),
    choices(SHARED + "Another", [" red", " no"]),
    choices("Short", [" yes", " y"]),
    choices("Short", [" yes", " never"]),  # a prompt, and an answer, of two documents
    choices("Left", [" same end"]) + choices("Right side", [" same end"]),
    generated(SHARED + "Go on"),
    generated(SHARED + "Go on and on"),
    generated("On"),
    [("loglikelihood_rolling", Request(("A text of its own.",)))],
]


def seen(model: Any, tokenizer: Any, documents: list[list[Asked]], batch_size: int | str = "auto") -> Routes:
    lm = EngineLM(model, tokenizer, batch_size=batch_size, progress=False)
    routes = Routes()
    with observed(lm, routes):
        for kind in ("loglikelihood", "generate_until", "loglikelihood_rolling"):
            requests = {keys_of([asked])[0]: asked[1] for d in documents for asked in d if asked[0] == kind}
            lm.answer(kind, list(requests.values()), lambda index, answer: None)
    return routes


def keys_of(document: list[Asked]) -> list[str]:
    return [request_key(kind, request.args, request.repeat) for kind, request in document]


def counted(routes: Routes, documents: list[list[Asked]], groups: int | None = None) -> Counts:
    return count(routes, [keys_of(document) for document in documents], groups)


def entropy(counts: Sequence[int]) -> float:
    total = sum(counts)
    return -sum(c / total * math.log2(c / total) for c in counts if c)


def brute(model: Any, lm: EngineLM, documents: list[list[Asked]], shape: tuple[int, ...]) -> Any:
    """Pairs [P, L, E, E] that are counted token by token; the diagonal has the single experts."""
    pairs_PLEE = np.zeros(shape, dtype=int)

    def add(phase: int, routes: Any, tokens: slice) -> None:
        for layer, index_TK in enumerate(routes.indices):
            for experts in index_TK[tokens].tolist():
                for i, j in product(experts, experts):
                    pairs_PLEE[phase, layer, i, j] += 1

    for document in documents:
        prompts: set[tuple[int, ...]] = set()
        for kind, request in document:
            prompt, answer = tokens_of(model, lm, kind, request)
            with record(model) as routes, torch.inference_mode():
                model(torch.tensor([[*prompt, *answer]]))
            if prompt not in prompts:
                add(PHASES.index("prefill"), routes, slice(len(prompt)))
            prompts.add(prompt)
            add(PHASES.index("decode"), routes, slice(len(prompt), None))
    return pairs_PLEE


def tokens_of(model: Any, lm: EngineLM, kind: str, request: Request) -> tuple[tuple[int, ...], list[int]]:
    """A request's prompt, and those tokens of its answer that are read."""
    if kind == "loglikelihood":
        context, continuation = lm.encode_pair(*request.args)
        return context, list(continuation[:-1])
    if kind == "loglikelihood_rolling":
        ids = lm.tok_encode(request.args[0])
        return (lm.prefix_token_id,), ids[:-1]
    ids = lm.tok_encode(request.args[0])
    answer: list[int] = []
    for _ in range(NEW_TOKENS):
        with torch.inference_mode():
            answer.append(int(model(torch.tensor([[*ids, *answer]])).logits[0, -1].argmax()))
        if answer[-1] == lm.eot_token_id:
            break
    return tuple(ids), answer[:-1]


@pytest.mark.parametrize("family", by_family(FAMILIES))
def test_counts_are_those_of_documents_read_alone(family, tokenizer):
    model = kv_cache_model(family)
    counts = counted(seen(model, tokenizer, DOCUMENTS), DOCUMENTS)
    pairs_PLEE = counts.pairs_GPLEE.sum(axis=0)
    expected = brute(model, EngineLM(model, tokenizer, progress=False), DOCUMENTS, pairs_PLEE.shape)
    assert (pairs_PLEE == expected).all() and all(counts.tokens_P) and expected.any(axis=(1, 2, 3)).all()
    for pairs_LEE in expected:
        singles_LE = np.diagonal(pairs_LEE, axis1=-2, axis2=-1)
        found = load_balance(singles_LE.astype(float), counts.experts)
        assert found.tolist() == pytest.approx(list(map(entropy, singles_LE.tolist())), abs=1e-12)
        others_LEE = pairs_LEE * (1 - np.eye(pairs_LEE.shape[-1], dtype=int))
        found = collaboration(pairs_LEE.astype(float), counts.experts)
        for layer, E in enumerate(counts.experts):
            mean = sum(map(entropy, others_LEE[layer].tolist())) / E
            assert found[layer] == pytest.approx(mean, abs=1e-12)


def test_shared_experts_are_not_counted(tokenizer):
    counts = counted(seen(small_model("qwen2_moe"), tokenizer, DOCUMENTS[:2]), DOCUMENTS[:2])
    top_k = small_model("qwen2_moe").config.num_experts_per_tok
    assert counts.experts == [8] * 3  # of four layers one is dense
    assert counts.selections_GPLE.sum(axis=(0, 3)).tolist() == [[n * top_k] * 3 for n in counts.tokens_P]


def test_neither_batches_nor_order_nor_groups_change_the_sums(tokenizer):
    model = small_model("olmoe")
    one = counted(seen(model, tokenizer, DOCUMENTS), DOCUMENTS)
    backwards = DOCUMENTS[::-1]
    for batch_size in (1, 3):
        other = counted(seen(model, tokenizer, backwards, batch_size), backwards, groups=2)
        assert other.pairs_GPLEE.shape[0] == 2
        assert (other.pairs_GPLEE.sum(axis=0) == one.pairs_GPLEE.sum(axis=0)).all()
        assert other.tokens_P == one.tokens_P
    alone = counted(seen(model, tokenizer, DOCUMENTS[:1]), DOCUMENTS[:1])
    assert (alone.pairs_GPLEE[0] == one.pairs_GPLEE[0]).all()


def test_a_model_that_does_not_run_as_rows_is_refused(tokenizer):
    lm = EngineLM(small_model("jamba"), tokenizer, progress=False)
    with pytest.raises(ConfigError, match="metrics=expert"), observed(lm, Routes()):
        pass
