"""Small models with random weights, each built once per process, and a byte tokenizer.

`make_model` builds plain variants of five architectures, `small_model` the supported families of
`tests/support/families.py`, `build` any configuration.
"""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.families import (
    COMMON,
    IMAGE_TEXT,
    IMAGE_TOKENS,
    KV_CACHE_VARIANTS,
    TEXT_ONLY,
    VOCAB,
    ZOO,
)

FAMILIES = ("olmoe", "mixtral", "qwen2_moe")
"""MoE families of PLAIN for tests of the engine. qwen3_moe differs from mixtral in its attention
alone, and `tests/families/test_engine.py` compares every family with the slow references."""

END_TOKEN = 256
"""Of the byte tokenizer: beginning, end and padding."""

_PLAIN_COMMON = dict(vocab_size=VOCAB, max_position_embeddings=512, num_experts_per_tok=2)
_PLAIN_COMMON |= dict(hidden_size=48, num_attention_heads=4, num_hidden_layers=4)
_PLAIN_COMMON |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), END_TOKEN)
_QWEN = dict(num_key_value_heads=2, intermediate_size=40, moe_intermediate_size=24)
PLAIN: dict[str, dict[str, Any]] = {
    "olmoe": dict(num_experts=8, num_key_value_heads=4, intermediate_size=24),
    "mixtral": dict(num_local_experts=6, num_key_value_heads=2, intermediate_size=24),
    "qwen2_moe": _QWEN
    | dict(num_experts=8, shared_expert_intermediate_size=32, mlp_only_layers=[1]),
    "qwen3_moe": _QWEN | dict(num_experts=7, head_dim=16, norm_topk_prob=True),
    "llama": dict(num_key_value_heads=2, intermediate_size=40, num_experts_per_tok=...),
}
"""`model_type` -> settings in addition to `_PLAIN_COMMON`: full attention in all
layers, no windows or groups."""


def make_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """A model of PLAIN. Every call returns a new copy."""
    return build(family, _PLAIN_COMMON | PLAIN[family] | changes, seed)


@cache
def small_config(family: str) -> Any:
    """The configuration of `small_model`."""
    return _whole_config(family, _given(COMMON | ZOO[text_type(family)]))


def small_model(family: str) -> Any:
    """A model of a supported family, or of an image-and-text model of one, by `model_type`.

    A family that transformers has no causal language model of is in its image-and-text model. Every
    call returns the same object.
    """
    return _built(family, json.dumps(_given(COMMON | ZOO[text_type(family)])), 0)


def text_type(model_type: str) -> str:
    """The `model_type` of the text model of a model of `small_model`."""
    if model_type in IMAGE_TEXT:
        return IMAGE_TEXT[model_type]["text"]
    return model_type


def _image_text_of(family: str) -> str:
    """The first image-and-text model with this text model, by `model_type`."""
    for model_type, parts in IMAGE_TEXT.items():
        if parts["text"] == family:
            return model_type
    raise KeyError(family)


def kv_cache_model(family: str) -> Any:
    """`small_model` that runs on a KV cache. Every call returns the same object."""
    settings = COMMON | ZOO[family] | KV_CACHE_VARIANTS.get(family, {})
    return _built(family, json.dumps(_given(settings)), 0)


def build(model_type: str, settings: dict[str, Any], seed: int = 0) -> Any:
    """A model in float32 with random weights, wide enough that routers and logits differ clearly.

    Biases and sinks are random, too. Every call returns a new copy.
    """
    return copy.deepcopy(_built(model_type, json.dumps(_given(settings)), seed))


@cache
def _built(model_type: str, settings: str, seed: int) -> Any:
    from moe_lab.models.auto_class import auto_class

    config = _whole_config(model_type, json.loads(settings))
    return _random_model(auto_class(config), config, seed)


def whole_model(model_type: str) -> Any:
    """A small image-and-text model with all its parts, of a type in `TEXT_ONLY`."""
    from transformers import AutoModelForImageTextToText

    parts = TEXT_ONLY[model_type]
    config = image_text_config(model_type, parts, _given(COMMON | ZOO[parts["text"]]))
    return _random_model(AutoModelForImageTextToText, config, 0)


def _random_model(auto_class: Any, config: Any, seed: int) -> Any:
    import torch

    torch.manual_seed(seed)
    model = auto_class.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "bias" in name or "sinks" in name:
                tensor.normal_(0, 0.2)
            elif "per_expert_scale" in name:
                tensor.uniform_(0.5, 2)
            elif tensor.dim() > 1 and isinstance(tensor, torch.nn.Parameter):
                tensor.normal_(0, 0.15)
    return model


def _config(model_type: str, settings: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING

    # the import registers this package's families with transformers
    import moe_lab.models.designs  # noqa: F401

    return CONFIG_MAPPING[model_type](**settings)


def _whole_config(model_type: str, settings: dict[str, Any]) -> Any:
    """The configuration of a model: of `model_type` itself, or of an image-and-text model around a
    text model that transformers has no class for alone.

    Args:
        settings: of the text model.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    if model_type not in IMAGE_TEXT:
        config = _config(model_type, settings)
        runs_alone = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
        if runs_alone or type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
            return config
        model_type = _image_text_of(model_type)
    parts = IMAGE_TEXT[model_type]
    return image_text_config(parts.get("type", model_type), parts, settings)


def image_text_config(model_type: str, parts: dict[str, Any], settings: dict[str, Any]) -> Any:
    """The configuration of an image-and-text model.

    Args:
        parts: as in `IMAGE_TEXT`.
        settings: of the text model.
    """
    text_config = _config(parts["text"], settings)
    whole = dict(text_config=text_config, vision_config=parts["vision"]) | IMAGE_TOKENS
    return _config(model_type, whole | parts.get("more", {}))


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without the keys that `...` leaves out."""
    return {key: value for key, value in settings.items() if value is not ...}


def make_tokenizer() -> Any:
    """One token per byte, and `<|end|>` (256) as beginning, end and padding."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: i for i, symbol in enumerate(alphabet)} | {"<|end|>": END_TOKEN}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    roles = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|end|>")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


def save_model(model: Any, folder: Path, tokenizer: Any = None) -> Path:
    """The folder, with a model and a tokenizer (of one token per byte): what `model.path` takes."""
    model.save_pretrained(folder)
    (tokenizer or make_tokenizer()).save_pretrained(folder)
    return folder


def change_json(file: Path, **values: Any) -> None:
    """Set some keys of a file of JSON."""
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def load_folder(folder: Path, dtype: str = "auto", device: str = "cpu", **model: Any) -> Any:
    """What `load_model` makes of a folder, offline; `model` are keys of ModelConfig."""
    from moe_lab.config.schema import ModelConfig
    from moe_lab.models.load import load_model

    return load_model(
        ModelConfig(path=str(folder), **model), dtype=dtype, device=device, offline=True
    )


def left_padded(tokenizer: Any, texts: list[str]) -> dict[str, Any]:
    """`input_ids` and `attention_mask` of texts, padded on the left."""
    tokenizer.padding_side = "left"
    padded = tokenizer(texts, return_tensors="pt", padding=True)
    return {name: padded[name] for name in ("input_ids", "attention_mask")}


def new_tokens_of(ids: Any, inputs: dict[str, Any]) -> list[list[int]]:
    """The generated tokens of each sequence: up to the end token, without padding after it."""
    prompt_length = inputs["input_ids"].shape[1]
    new_tokens = []
    for row in ids[:, prompt_length:].tolist():
        if END_TOKEN in row:
            row = row[: row.index(END_TOKEN) + 1]
        new_tokens.append(row)
    return new_tokens
