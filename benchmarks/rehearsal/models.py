"""The models of the rehearsal: published architectures with small widths and random weights, under
their ids on the hub.

Layers, experts, experts per token, windows and positions are the published ones. Widths, heads and
vocabularies are small. Tokenizers have the published special tokens and chat templates of the
published form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.deepseek.checkpoint import write_checkpoint
from tests.support.hub.published import GPT_OSS_TEMPLATE, GPT_OSS_TOKENS, PUBLISHED
from tests.support.models import build

HIDDEN = 64
HEADS = 4
WIDTH = 64
EXPERT_WIDTH = 32
VOCABULARY = 4000
GUARD = "meta-llama/Llama-Guard-3-8B"
REWARD = "safepaca/absolute-harmfulness-predictor-redteam"

BIN_ONLY = (REWARD, "deepseek-ai/deepseek-llm-7b-base")
"""Repositories without safetensors."""


def _dense(
    model_type: str, layers: int, positions: int, groups: int = 1, **settings: Any
) -> dict[str, Any]:
    """A dense model; `groups`: query heads that share a key head."""
    sizes = {
        "num_hidden_layers": layers,
        "max_position_embeddings": positions,
        "num_attention_heads": HEADS,
    }
    return {"model_type": model_type, **sizes, "num_key_value_heads": HEADS // groups, **settings}


CONFIGS: dict[str, dict[str, Any]] = {
    "allenai/OLMoE-1B-7B-0924": PUBLISHED["olmoe"],
    "allenai/OLMoE-1B-7B-0924-Instruct": PUBLISHED["olmoe"],
    "allenai/OLMoE-1B-7B-0125-Instruct": PUBLISHED["olmoe"],
    "mistralai/Mixtral-8x7B-Instruct-v0.1": PUBLISHED["mixtral"],
    "openai/gpt-oss-20b": PUBLISHED["gpt-oss"],
    "deepseek-ai/deepseek-moe-16b-base": PUBLISHED["deepseek-moe"],
    "Qwen/Qwen3-30B-A3B-Instruct-2507": PUBLISHED["qwen3-moe"],
    "ibm-granite/granite-3.1-1b-a400m-instruct": PUBLISHED["granite-moe-1b"],
    "meta-llama/Llama-2-7b-hf": _dense("llama", 32, 4096),
    "mistralai/Mistral-7B-v0.1": _dense("mistral", 32, 32768, 4, sliding_window=4096),
    "deepseek-ai/deepseek-llm-7b-base": _dense("llama", 30, 4096),
    "meta-llama/Llama-3.1-8B": _dense("llama", 32, 131072, 4),
    "meta-llama/Llama-3.2-1B": _dense("llama", 16, 131072, 4, tie_word_embeddings=True),
    "allenai/OLMo-2-1124-7B": _dense("olmo2", 32, 4096),
    "allenai/OLMo-1B-hf": _dense("olmo", 16, 2048, tie_word_embeddings=True),
    "EleutherAI/pythia-1b": _dense("gpt_neox", 16, 2048),
    "stabilityai/stablelm-2-1_6b": _dense("stablelm", 24, 4096, use_qkv_bias=True),
    "jetmoe/jetmoe-8b": {
        "model_type": "jetmoe",
        "num_hidden_layers": 24,
        "max_position_embeddings": 4096,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "kv_channels": 16,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
    },
    "google/gemma-2-2b": _dense("gemma2", 26, 8192, 2, head_dim=16, tie_word_embeddings=True),
    "Qwen/Qwen1.5-MoE-A2.7B": _dense("qwen2_moe", 24, 8192)
    | {"num_experts": 60, "num_experts_per_tok": 4, "decoder_sparse_step": 1},
    GUARD: _dense("llama", 32, 131072, 4),
}
"""The published numbers by id. Keys that are not here are the defaults of transformers'
configuration class."""

_TURNS = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] "
    "}}{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}{% if "
    "add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_INSTRUCT = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %} {{ "
    "message['content'] }}{{ eos_token }}{% else %} [INST] {{ message['content'] }} [/INST]{% "
    "endif %}{% endfor %}"
)
_IM = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] "
    "}}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_GUARD = (
    "{{ bos_token }}<|start_header_id|>user<|end_header_id|>\n\nTask: Check if there is unsafe "
    "content in 'Agent' messages.\n{% for message in messages %}{{ message['role'] }}: {% if "
    "message['content'] is string %}{{ message['content'] }}{% else %}{% for part in "
    "message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}\n"
    "{% endfor %}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
)

Special = tuple[str | None, str, str | None, tuple[str, ...], str | None]
"""(beginning, end, padding, further special tokens, chat template)"""

_OLMOE: Special = ("|||IP_ADDRESS|||", "|||IP_ADDRESS|||", "<|padding|>", ("<|endoftext|>",), None)
SPECIAL: dict[str, Special] = {
    "allenai/OLMoE-1B-7B-0924-Instruct": (*_OLMOE[:4], _TURNS),
    "allenai/OLMoE-1B-7B-0125-Instruct": (*_OLMOE[:4], _TURNS),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": ("<s>", "</s>", None, ("<unk>",), _INSTRUCT),
    "openai/gpt-oss-20b": (
        "<|startoftext|>",
        "<|return|>",
        "<|endoftext|>",
        GPT_OSS_TOKENS,
        GPT_OSS_TEMPLATE,
    ),
    "deepseek-ai/deepseek-moe-16b-base": (
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        None,
        (),
        None,
    ),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": (
        None,
        "<|im_end|>",
        "<|endoftext|>",
        ("<|im_start|>",),
        _IM,
    ),
    "ibm-granite/granite-3.1-1b-a400m-instruct": (
        "<|end_of_text|>",
        "<|end_of_text|>",
        "<|end_of_text|>",
        (),
        _TURNS,
    ),
    GUARD: (
        "<|begin_of_text|>",
        "<|eot_id|>",
        None,
        ("<|start_header_id|>", "<|end_header_id|>"),
        _GUARD,
    ),
}
_OTHERS: Special = ("<s>", "</s>", None, ("<unk>",), None)


def train_vocabulary(texts: Iterable[str], file: Path) -> None:
    """Write a byte-level BPE of VOCABULARY tokens, which all models share, to a tokenizer.json."""
    from tokenizers import ByteLevelBPETokenizer

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(texts, vocab_size=VOCABULARY, show_progress=False)
    bpe.save(str(file))


def write_model(id: str, folder: Path, vocabulary: Path) -> None:
    """The files of a model's repository."""
    _write_safetensors(id, folder, vocabulary)
    if id in BIN_ONLY:
        _as_bin(folder)


def _as_bin(folder: Path) -> None:
    """Replace the weights of a folder by two .bin files and their index."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    file.unlink()
    names = list(weights)
    weight_map: dict[str, str] = {}
    for part in (0, 1):
        shard = f"pytorch_model-{part + 1:05}-of-00002.bin"
        in_shard = {name: weights[name] for name in names[part::2]}
        torch.save(in_shard, folder / shard)
        weight_map |= dict.fromkeys(in_shard, shard)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def _write_safetensors(id: str, folder: Path, vocabulary: Path) -> None:
    tokenizer = _tokenizer(id, vocabulary)
    if id.startswith("sentence-transformers/"):
        return _write_encoder(folder, tokenizer)
    tokenizer.save_pretrained(folder)
    ids = {
        f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")
    }
    if id == REWARD:
        return _write_reward(folder, tokenizer, ids)
    config = _small(CONFIGS[id], len(tokenizer)) | ids
    if id == "deepseek-ai/deepseek-moe-16b-base":
        write_checkpoint(folder, config)
        return
    settings = {
        k: v
        for k, v in config.items()
        if k not in ("architectures", "model_type", "quantization_config")
    }
    model = build(config["model_type"], settings).bfloat16()
    if id == GUARD:
        _let_judge(model, tokenizer)
    model.save_pretrained(folder)
    if "quantization_config" in config:
        _quantize(folder, config["quantization_config"])


def _tokenizer(id: str, vocabulary: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    default = _OLMOE if "OLMoE" in id else _OTHERS
    start, end, padding, other_tokens, template = SPECIAL.get(id, default)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(vocabulary), bos_token=start, eos_token=end, pad_token=padding
    )
    tokenizer.add_special_tokens({"extra_special_tokens": list(other_tokens)})
    if id == GUARD:
        tokenizer.add_tokens(["unsafe", "safe"])
    tokenizer.chat_template = template
    return tokenizer


def _small(published: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    """The published configuration with small widths and few heads, also where it leaves them to
    transformers' defaults."""
    from transformers import CONFIG_MAPPING  # once the hub's address is known

    sizes = ("num_attention_heads", "num_key_value_heads", "head_dim", "moe_intermediate_size")
    if published["model_type"] in CONFIG_MAPPING:
        defaults = CONFIG_MAPPING[published["model_type"]]().to_dict()
        published = {key: defaults[key] for key in sizes if defaults.get(key)} | published
    heads = published.get("num_attention_heads", HEADS)
    key_value_heads = published.get("num_key_value_heads", HEADS)
    widths = {
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS // 2 if key_value_heads < heads else HEADS,
        "intermediate_size": WIDTH,
        "moe_intermediate_size": EXPERT_WIDTH,
        "shared_expert_intermediate_size": EXPERT_WIDTH,
        "head_dim": HIDDEN // HEADS,
    }
    model_type = published["model_type"]
    if model_type in ("olmoe", "mixtral", "gpt_oss", "jetmoe", "granitemoe"):
        widths["intermediate_size"] = EXPERT_WIDTH  # of an expert
    kept_keys = {"vocab_size", "hidden_size", "intermediate_size", *published}
    if model_type == "qwen2_moe":
        kept_keys |= widths.keys()
    config = published | {key: value for key, value in widths.items() if key in kept_keys}
    if "torch_dtype" in config:
        config["dtype"] = config.pop("torch_dtype")
    return config


def _quantize(folder: Path, quantization: dict[str, Any]) -> None:
    """Replace the experts of a saved GPT-OSS by random blocks of MXFP4, as they are published."""
    [file] = folder.glob("*.safetensors")
    weights = {}
    generator = torch.Generator().manual_seed(0)
    for name, tensor in load_file(file).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            weights[name] = tensor
            continue
        experts, width, rows = tensor.shape
        shape = (experts, rows, width // 32)
        blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
        weights |= {
            f"{name}_blocks": blocks,
            f"{name}_scales": torch.full(shape, 123, dtype=torch.uint8),
        }
    save_file(weights, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))


def _let_judge(model: Any, tokenizer: Any) -> None:
    """A Llama Guard that answers "unsafe" or "safe", by what it read."""
    unsafe, safe = tokenizer.convert_tokens_to_ids(["unsafe", "safe"])
    with torch.no_grad():
        direction: Tensor = model.lm_head.weight[unsafe].clone()
        model.lm_head.weight[:] = 0
        model.lm_head.weight[unsafe], model.lm_head.weight[safe] = direction, -direction


def _write_reward(folder: Path, tokenizer: Any, ids: dict[str, Any]) -> None:
    """A regression of harm, a sequence classifier with one label, as its authors publish it."""
    from transformers import AutoModelForSequenceClassification, RobertaConfig

    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_hidden_layers=2,
        intermediate_size=WIDTH,
        max_position_embeddings=514,
        num_labels=1,
        **{name: value or 0 for name, value in ids.items()},
    )
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)


def _write_encoder(folder: Path, tokenizer: Any) -> None:
    """A sentence-transformers model: a small BERT and mean pooling."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import BertConfig, BertModel

    encoder_folder = folder.with_name(f"{folder.name}-encoder")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    torch.manual_seed(0)
    sizes = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "intermediate_size": WIDTH}
    BertModel(BertConfig(vocab_size=len(tokenizer), num_hidden_layers=2, **sizes)).save_pretrained(
        encoder_folder
    )
    tokenizer.save_pretrained(encoder_folder)
    encoder = Transformer(str(encoder_folder), max_seq_length=256)
    SentenceTransformer(modules=[encoder, Pooling(HIDDEN)]).save(str(folder))
