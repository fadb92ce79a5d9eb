"""Small models with random weights, of every family, and a byte tokenizer: shared by all tests."""

from __future__ import annotations

import copy
import gc
import json
import logging
import multiprocessing.process
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support.tiers import by_family

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# libraries' handlers keep the stderr of the test in which they were made, which pytest closes
logging.raiseExceptions = False

MANY_TESTS = 100
"""From here on a process imports the libraries at once."""

FAMILIES = ("olmoe", "mixtral", "qwen2_moe", "qwen3_moe")
VOCAB = 300

_COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=48,
    num_attention_heads=4,
    num_hidden_layers=4,
    num_experts_per_tok=2,
    max_position_embeddings=512,
    bos_token_id=256,
    eos_token_id=256,
    pad_token_id=256,
)


def make_model(family: str, seed: int = 0, **changes):
    """A small model of the family in float32, its weights wide enough that routers and logits differ clearly.

    Each is built once; every caller gets a copy of its own.
    """
    return copy.deepcopy(_built(family, seed, json.dumps(changes)))


@cache
def _built(family: str, seed: int, changes: str):
    import torch
    import transformers

    config_class, own = {
        "olmoe": (transformers.OlmoeConfig, dict(num_experts=8, num_key_value_heads=4, intermediate_size=24)),
        "mixtral": (
            transformers.MixtralConfig,
            dict(num_local_experts=6, num_key_value_heads=2, intermediate_size=24),
        ),
        "qwen2_moe": (
            transformers.Qwen2MoeConfig,
            dict(
                num_experts=8,
                num_key_value_heads=2,
                intermediate_size=40,
                moe_intermediate_size=24,
                shared_expert_intermediate_size=32,
                mlp_only_layers=[1],
            ),
        ),
        "qwen3_moe": (
            transformers.Qwen3MoeConfig,
            dict(
                num_experts=7,
                num_key_value_heads=2,
                head_dim=16,
                intermediate_size=40,
                moe_intermediate_size=24,
                norm_topk_prob=True,
            ),
        ),
        "llama": (transformers.LlamaConfig, dict(num_key_value_heads=2, intermediate_size=40)),
    }[family]
    if family == "llama":
        common = {key: value for key, value in _COMMON.items() if key != "num_experts_per_tok"}
    else:
        common = _COMMON
    torch.manual_seed(seed)
    model = (
        transformers.AutoModelForCausalLM.from_config(config_class(**(common | own | json.loads(changes))))
        .float()
        .eval()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    return model


def make_tokenizer():
    """One token per byte, and `<|end|>` (256) as beginning, end and padding."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: i for i, symbol in enumerate(alphabet)} | {"<|end|>": 256}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|end|>", eos_token="<|end|>", pad_token="<|end|>"
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take what the libraries made out of garbage collection, which runs load and free models would go through again."""
    if len(session.items) >= MANY_TESTS:
        import transformers.models.auto.modeling_auto  # noqa: F401

        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def processes_are_slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test in the fast tier starts no process."""
    if request.node.get_closest_marker("slow"):
        return

    def refused(*args, **keys):
        raise AssertionError("A test that starts processes is marked slow.")

    monkeypatch.setattr(subprocess.Popen, "__init__", refused)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refused)
    monkeypatch.setattr(os, "fork", refused)


@pytest.fixture(scope="session", params=by_family(FAMILIES))
def moe_model(request):
    """A small model of each MoE family in turn."""
    return make_model(request.param)


@pytest.fixture(scope="session")
def olmoe():
    return make_model("olmoe")


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="session")
def tiny_olmoe_dir(tmp_path_factory, olmoe, tokenizer) -> Path:
    """A saved random OLMoE with its tokenizer: what `model.path` takes."""
    folder = tmp_path_factory.mktemp("models") / "tiny-olmoe"
    olmoe.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def loads(monkeypatch):
    """One entry per time that weights are loaded."""
    import moe_lab.models.load

    seen = []
    load = moe_lab.models.load.load_model

    def counting(model, **keys):
        seen.append(model.name)
        return load(model, **keys)

    monkeypatch.setattr(moe_lab.models.load, "load_model", counting)
    return seen
