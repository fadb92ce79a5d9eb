"""RoE refuses what it cannot run. The message names the key, the value and the remedy.

Without RoE an engine is vLLM's own.

Broken by: a setting that would silently be without noise, or with other noise; a message without a
remedy.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.fused_moe.router.fused_moe_router import FusedMoERouter

from integrations.vllm.tests.cases import CASES
from integrations.vllm.tests.checkpoints import CONFIGURATIONS
from integrations.vllm.tests.support import ENGINE, TINY, engine, generated, stored
from moe_lab.routing import Router
from moe_lab.routing.families import family_of_type
from moe_lab.routing.noise import document_key
from moe_lab_vllm.options import Options
from moe_lab_vllm.requests import Request, Requests, request_of
from moe_lab_vllm.routers import require_same_rule
from moe_lab_vllm.scheduler import scratch_blocks

ROE = {"n": 4, "temperature": 0.5}


def configured(model: Path = TINY, roe: Any = ROE, **arguments: Any) -> Any:
    """The configuration of an engine, which does not start."""
    given = ENGINE | {"additional_config": {"roe": roe}} | arguments
    return EngineArgs(model=str(model), skip_tokenizer_init=True, **given).create_engine_config()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"enforce_eager": False}, "set enforce_eager=True"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2 is not supported; set it to 1"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2 is not supported; set it to 1"),
        ({"data_parallel_size": 2}, "data_parallel_size=2 is not supported; set it to 1"),
        ({"enable_expert_parallel": True}, "expert parallelism is not supported"),
        ({"enable_lora": True}, "LoRA is not supported"),
        (
            {
                "speculative_config": {
                    "method": "ngram",
                    "num_speculative_tokens": 2,
                    "prompt_lookup_max": 3,
                }
            },
            "speculative decoding is not supported",
        ),
        ({"quantization": "fp8"}, "quantization=fp8 is not tested"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype=fp8 is not tested"),
        (
            {"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"},
            "scheduler_cls is not supported",
        ),
        (
            {"max_num_batched_tokens": 65537},
            "max_num_batched_tokens=65537 is not supported; set it to at most 65536",
        ),
        ({"async_scheduling": True}, "async_scheduling=True is not tested; leave it out"),
        (
            {"roe": ROE | {"cache": "standard"}, "enable_prefix_caching": True},
            "set enable_prefix_caching=False",
        ),
        (
            {"roe": {"samples": 4}},
            "roe.samples=4: must be left out: the options are n, temperature, cache, seed",
        ),
        ({"roe": {"n": 1}}, "roe.n=1: must be an integer of at least 2"),
        ({"roe": {"temperature": -1}}, "roe.temperature=-1: must be a number of at least 0"),
        ({"roe": {"cache": "none"}}, "roe.cache='none': must be 'clean' or 'standard'"),
        ({"roe": {"seed": "one"}}, "roe.seed='one': must be an integer"),
        ({"roe": 8}, "roe=8: must be a dictionary"),
    ],
)
def test_refused_configurations(arguments: dict[str, Any], message: str):
    with pytest.raises(ValueError) as caught:
        configured(**arguments)
    assert message in str(caught.value)


def test_second_model_runner(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    with pytest.raises(ValueError, match="set VLLM_USE_V2_MODEL_RUNNER=0"):
        configured()


def test_families_without_a_rule(tmp_path: Path):
    other = CONFIGURATIONS["qwen3_moe"] | {
        "model_type": "qwen2_moe",
        "architectures": ["Qwen2MoeForCausalLM"],
    }
    (tmp_path / "config.json").write_text(json.dumps(other))
    with pytest.raises(
        ValueError, match="Qwen2MoeForCausalLM has no rule here; it runs MixtralForCausalLM, "
    ):
        configured(tmp_path)
    assert configured(tmp_path, roe=None).model_config.architecture == "Qwen2MoeForCausalLM"


def test_routers_with_another_rule():
    """OLMoE's rule does not renormalize weights, this router does."""
    vllm_router = SimpleNamespace(global_num_experts=8)
    module: Any = nn.Module()
    module.norm_topk_prob = False
    family = family_of_type("olmoe")
    assert family is not None
    router = Router(0, "model.layers.0.mlp.experts", module, family, module)

    def compute(renormalize: bool) -> Any:
        def routing(hidden: Any, logits: torch.Tensor, _: Any) -> tuple[torch.Tensor, torch.Tensor]:
            weights, index = logits.softmax(dim=-1).topk(2)
            return (weights / weights.sum(dim=-1, keepdim=True) if renormalize else weights), index

        return routing

    require_same_rule(router, compute(renormalize=False), vllm_router)
    with pytest.raises(
        ValueError,
        match=r"model\.layers\.0\.mlp\.experts does not route by moe_lab's rule of OLMoE",
    ):
        require_same_rule(router, compute(renormalize=True), vllm_router)


def test_kernels_that_route_by_themselves(monkeypatch: pytest.MonkeyPatch):
    def select(self: Any, hidden_states: Any, router_logits: Any, *_: Any, **__: Any) -> Any:
        return type(self)._compute_routing(self, hidden_states, router_logits, None)

    monkeypatch.setattr(FusedMoERouter, "select_experts", select)
    answers = stored("tiny")
    for cache in ("clean", "standard"):
        roe = ROE | {"cache": cache}
        with (
            engine(TINY, roe, enable_prefix_caching=False) as llm,
            pytest.raises(
                RuntimeError, match="a kernel routes by itself, so that samples have no noise"
            ),
        ):
            generated(llm, answers["prompts"][:1], [4])


def test_temperatures_of_another_number_of_layers():
    assert Options(temperature=0.5).temperatures(4) == [0, 0.5, 0.5, 0]
    assert Options(temperature=[0, 1, 2]).temperatures(3) == [0, 1, 2]
    with pytest.raises(ValueError, match="must be a list of 4: one for each MoE layer"):
        Options(temperature=[0, 1, 2]).temperatures(4)
    with pytest.raises(ValueError, match="must be a list of 2: one for each MoE layer"):
        Options(temperature=0.5).temperatures(2)


@pytest.mark.parametrize(
    "given", [{"contxt": 3}, {"context": 0}, {"repeat": -1}, {"repeat": True}, 5]
)
def test_refused_requests(given: Any):
    with pytest.raises(ValueError, match="extra_args roe"):
        Requests.validate_params(SamplingParams(extra_args={"roe": given}))
    Requests.validate_params(SamplingParams(extra_args={"roe": {"context": 1, "repeat": 0}}))


def test_keys_of_requests():
    def request(**given: int) -> Request:
        return request_of(SamplingParams(extra_args={"roe": given}), [5, 6, 7], [])

    assert request() == Request(document_key([5, 6, 7]), repeat=0, first=0)
    assert request(context=2, repeat=1) == Request(document_key([5, 6]), repeat=1, first=1)
    assert request(context=9) == Request(document_key([5, 6, 7]), repeat=0, first=2), (
        "the last token has noise"
    )


def test_too_few_blocks():
    assert scratch_blocks(Options(n=8), num_blocks=30) == 7
    assert scratch_blocks(Options(n=8), num_blocks=10_000) == 256
    with (
        pytest.raises(ValueError, match="n=8 leaves 4 of 11 KV blocks for texts"),
        engine(*(TINY, ROE | {"n": 8}), num_gpu_blocks_override=11, max_model_len=128),
    ):
        pass


def test_without_options_it_is_the_base_model():
    config = configured(roe=None)
    assert (
        config.scheduler_config.scheduler_cls is None and not config.model_config.logits_processors
    )
    case, answers = CASES["tiny"], stored("tiny")
    with engine(TINY, None) as llm:
        texts = generated(llm, answers["prompts"], [case.new] * case.prompts)
    assert texts == answers["base_texts"]
