"""RoE in vLLM equals `moe_lab.RoE`.

Each text is equal token for token, and each log-likelihood but for rounding.

Broken by: other noise or another key of it, samples that read other keys and values, a wrong row of
the batch after requests were moved, interrupted or read in chunks, a kernel without noise.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from vllm.envs import disable_envs_cache
from vllm.v1.engine.core_client import SyncMPClient

from integrations.vllm.tests.cases import CASES, Case
from integrations.vllm.tests.checkpoints import write
from integrations.vllm.tests.support import TINY, counter, engine, generated, loglikelihoods, stored

ROUNDING = 1e-4
"""Of sums of about -100; RoE changes them by about 1."""


@pytest.mark.parametrize("name", CASES)
def test_equal_to_moe_lab(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    case, answers = CASES[name], stored(name)
    disable_envs_cache()  # an engine before may have read the variable
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", str(int(case.own_process)))
    arguments = case.engine | {
        "enable_prefix_caching": case.cache == "clean",
        "disable_log_stats": False,
    }
    with engine(checkpoint(case, tmp_path, answers["weights"]), case.options, **arguments) as llm:
        assert isinstance(llm.llm_engine.engine_core, SyncMPClient) == case.own_process
        texts = generated(llm, answers["prompts"], case.lengths)
        interrupted = counter(llm, "vllm:num_preemptions")
        found = loglikelihoods(llm, answers["prompts"], answers["contexts"])
    assert texts == cut(answers["texts"], case)
    assert found == pytest.approx(answers["loglikelihoods"], abs=ROUNDING)
    assert (interrupted > 0) == case.preempted
    changed = sum(
        text != base for text, base in zip(texts, cut(answers["base_texts"], case), strict=True)
    )
    effect = max(abs(a - b) for a, b in zip(found, answers["base_loglikelihoods"], strict=True))
    worst = max(abs(a - b) for a, b in zip(found, answers["loglikelihoods"], strict=True))
    print(
        f"{name}: {len(texts)} texts equal, {changed} changed; "
        f"LL differ by {worst:.1e}, effect {effect:.2g}"
    )
    print(f"{interrupted} preemptions")
    if case.temperature > 0:
        assert changed and effect > 100 * ROUNDING, "the noise has no effect"
    else:
        assert not changed and effect < ROUNDING


def test_cached_prefixes():
    """The second time the prompts' blocks come from the cache.

    They hold keys and values of the base model.
    """
    case, answers = CASES["chunked prefill"], stored("chunked prefill")
    with engine(
        TINY, case.options, **case.engine, enable_prefix_caching=True, disable_log_stats=False
    ) as llm:
        first, second = (generated(llm, answers["prompts"], case.lengths) for _ in range(2))
        hits = counter(llm, "vllm:prefix_cache_hits")
    assert first == second == cut(answers["texts"], case)
    assert hits >= 100 * case.prompts


def test_several_answers():
    """Another answer to a prompt has noise of its own: `extra_args={"roe": {"repeat": 1}}`."""
    case, answers = CASES["tiny"], stored("tiny")
    with engine(TINY, case.options) as llm:
        texts = generated(llm, answers["prompts"], case.lengths, repeat=1)
    assert texts == cut(answers["second_texts"], case) != cut(answers["texts"], case)


def cut(texts: list[list[int]], case: Case) -> list[list[int]]:
    return [text[:length] for text, length in zip(texts, case.lengths, strict=True)]


def checkpoint(case: Case, folder: Path, weights: str) -> Path:
    """The folder of a case's model, whose weights are those that moe_lab had."""
    if case.model == "tiny":
        return TINY
    write(folder, case.model)
    assert sha256((folder / "model.safetensors").read_bytes()).hexdigest() == weights
    return folder
