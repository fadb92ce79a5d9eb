"""lm-eval's own `vllm` model runs RoE by its arguments, unchanged.

Broken by: arguments that lm-eval does not hand on, or noise that depends on how lm-eval batches its
requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.vllm_causallms import VLLM

from integrations.vllm.tests.cases import CASES
from integrations.vllm.tests.support import ENGINE, TINY, stored

CASE, STORED = CASES["tiny"], stored("tiny")


@pytest.fixture(scope="module")
def lm() -> Iterator[VLLM]:
    made = VLLM(pretrained=str(TINY), **ENGINE, additional_config={"roe": CASE.options})
    yield made
    made.model.llm_engine.engine_core.shutdown()


def test_generation(lm: VLLM):
    prompts, texts = (lm.tokenizer.batch_decode(STORED[name]) for name in ("prompts", "texts"))
    options = {"until": [], "max_gen_toks": CASE.new, "min_tokens": CASE.new, "do_sample": False}
    same = [i for i, ids in enumerate(STORED["prompts"]) if lm.tok_encode(prompts[i]) == ids]
    assert len(same) >= CASE.prompts // 2, "prompts of whole words have the same token ids again"
    answers = lm.generate_until(
        [instance("generate_until", i, (prompts[i], options)) for i in same]
    )
    assert answers == [texts[i] for i in same]


def test_log_likelihoods(lm: VLLM):
    requests = [
        (("", ""), ids[:context], ids[context:])
        for ids, context in zip(STORED["prompts"], STORED["contexts"], strict=True)
    ]
    found = [value for value, _ in lm._loglikelihood_tokens(requests)]
    assert found == pytest.approx(STORED["loglikelihoods_by_whole_prompt"], abs=1e-4)


def instance(kind: str, i: int, arguments: Any) -> Instance:
    return Instance(kind, doc={}, arguments=arguments, idx=i)  # type: ignore[arg-type]
