"""What makes a model folder hostile: damaged files, impossible settings, templates and weights, code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.faults.model_files import (
    CONFIG,
    GENERATION,
    INDEX,
    MARK,
    TEMPLATE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    change_bytes,
    change_json,
    change_tensors,
    link_to,
    link_weights,
    make_fifo,
    make_folder,
    make_index,
    make_pickle,
    move_shards_below,
    remove,
    set_template,
    set_values,
    write,
)

GENERATES = ("task=toy_math", "gen_kwargs={max_gen_toks:4}")
CHATS = ("apply_chat_template=true",)
SAME, REFUSED, EITHER = "the whole one's numbers", "refused", "refused, or some numbers"


@dataclass(frozen=True)
class Hostility:
    """What is done to a model's folder, and what must come of it."""

    name: str
    do: Callable[[Path], None]
    ends: str = EITHER
    argv: tuple[str, ...] = field(default=())


def hostilities() -> list[Hostility]:
    """All of them, in a fixed order."""
    return [
        *_files(),
        *_configurations(),
        *_weights(),
        *_tokenizers(),
        *_templates(),
        *_generation(),
        *_code(),
    ]


def _files() -> list[Hostility]:
    contents = {
        "empty": b"",
        "a list": b"[]",
        "null": b"null",
        "a text": b'"text"',
        "cut": b'{"model_type": ',
        "no UTF-8": b'{"model_type": "\xff\xfe"}',
        "nested deeply": b"[" * 100_000,
    }
    found = []
    for file in (CONFIG, TOKENIZER, TOKENIZER_CONFIG):
        for what, content in contents.items():
            ends = REFUSED if file == CONFIG else EITHER
            found.append(Hostility(f"{file} is {what}", partial(write, file, content), ends))
    for file in (CONFIG, WEIGHTS, TOKENIZER):
        found.append(Hostility(f"{file} is missing", partial(remove, file), REFUSED))
        found.append(Hostility(f"{file} is a folder", partial(make_folder, file), REFUSED))
        found.append(Hostility(f"{file} is a FIFO", partial(make_fifo, file), REFUSED))
        found.append(Hostility(f"{file} links to itself", partial(link_to, file, file), REFUSED))
        found.append(Hostility(f"{file} links to /dev/zero", partial(link_to, file, "/dev/zero"), REFUSED))
    return found


def _configurations() -> list[Hostility]:
    refused: list[dict[str, Any]] = [
        *({"model_type": value} for value in (None, 7, "nothing", "bert", [])),
        *({"hidden_size": value} for value in ("32", -32, 0, 33, 10**9, 10**40, None, 1.5)),
        *({"num_attention_heads": value} for value in (0, -2, 64, "4", 3)),
        *({"num_key_value_heads": value} for value in (0, 3, "2")),
        *({"num_hidden_layers": value} for value in (0, -1, 99, 1, "2")),
        *({"experts": value} for value in (0, -1, "8", 1, 9, 10**12)),
        *({"num_experts_per_tok": value} for value in (0, -1, 99, "2", 2.5)),
        *({"vocab_size": value} for value in (0, 1, -1, 10**12, "300")),
        *({"hidden_act": value} for value in ("nothing", 7)),
        *({"rope_parameters": value} for value in ([], {"rope_type": "nothing"}, {"rope_theta": "x"}, 7)),
        *({"quantization_config": value} for value in ([], {"quant_method": "nothing"}, "x", {"bits": 4})),
        {"dtype": "float7"},
        {"attention_bias": "yes", "rms_norm_eps": "x"},
        {"max_position_embeddings": -1},
        {"max_position_embeddings": "x"},
        {"transformers_weights": "../other.safetensors"},
        {"attn_implementation": "owner/kernel"},
        {"attn_implementation": "nothing"},
    ]
    either: list[dict[str, Any]] = [
        {"rms_norm_eps": float("nan")},
        {"rms_norm_eps": -1},
        {"tie_word_embeddings": "yes"},
        {"architectures": []},
        {"_name_or_path": 7, "architectures": 7},
        {"pad_token_id": 10**9},
        {"eos_token_id": "x"},
        {"is_encoder_decoder": True},
        {"sliding_window": -1},
        {"text_config": {"hidden_size": 7}},
        {"id2label": 7},
        {"num_labels": "x"},
    ]
    same: list[dict[str, Any]] = [
        {"use_cache": False},
        {"anything": "x" * 10**6},
        {"output_router_logits": True},
    ]
    return [
        Hostility(f"config.json has {str(values)[:80]}", partial(set_values, CONFIG, values), ends)
        for group, ends in ((refused, REFUSED), (either, EITHER), (same, SAME))
        for values in group
    ]


def _weights() -> list[Hostility]:
    import torch

    def spoil(number: float) -> Callable[[dict[str, Any]], None]:
        return lambda tensors: tensors[sorted(tensors)[3]].view(-1)[:1].fill_(number)

    def times(factor: float) -> Callable[[dict[str, Any]], None]:
        return lambda tensors: [tensor.mul_(factor) for tensor in tensors.values()]

    def more_layers(tensors: dict[str, Any]) -> None:
        copies = {name.replace(".layers.1.", ".layers.2."): each.clone() for name, each in tensors.items()}
        tensors.update(copies)

    changes: dict[str, Callable[[dict[str, Any]], Any]] = {
        "a NaN": spoil(float("nan")),
        "an infinity": spoil(float("inf")),
        "all times 1e30": times(1e30),
        "all times 1e9": times(1e9),
        "no head": lambda tensors: tensors.pop("lm_head.weight"),
        "one tensor less": lambda tensors: tensors.pop(sorted(tensors)[5]),
        "one tensor more": lambda tensors: tensors.update(more=torch.ones(3)),
        "more layers": more_layers,
        "a tensor of another shape": lambda tensors: tensors.update({"model.norm.weight": torch.ones(7)}),
        "no tensor at all": lambda tensors: tensors.clear(),
        "whole numbers": lambda tensors: tensors.update({k: v.long() for k, v in tensors.items()}),
        "a name with an escape sequence": lambda tensors: tensors.update({"\x1b[31mred": torch.ones(3)}),
    }
    either = {"whole numbers"}
    damages: dict[str, Callable[[bytes], bytes]] = {
        "empty": lambda content: b"",
        "cut in its header": lambda content: content[:100],
        "cut in its numbers": lambda content: content[:-100],
        "of a header of 2**62 bytes": lambda content: (2**62).to_bytes(8, "little") + content[8:],
        "of a header that is a list": lambda content: (2).to_bytes(8, "little") + b"[]",
        "of a header that is no JSON": lambda content: content[:8] + b"x" + content[9:],
        "of an unknown dtype": lambda content: content.replace(b'"F32"', b'"F99"', 1),
        "followed by more": lambda content: content + b"x" * 100,
    }
    indices: dict[str, Any] = {
        "names a file outside": {"weight_map": {"a": "../other.safetensors"}},
        "names a file by its whole path": {"weight_map": {"a": "/etc/hostname"}},
        "names a missing file": {"weight_map": {"a": "missing.safetensors"}},
        "names itself": {"weight_map": {"a": INDEX}},
        "has a number for a file": {"weight_map": {"a": 7}},
        "has no map": {"metadata": {}},
        "is a list": [],
    }
    return [
        *(
            Hostility(
                f"weights with {what}", partial(change_tensors, change), EITHER if what in either else REFUSED
            )
            for what, change in changes.items()
        ),
        *(
            Hostility(f"weights are {what}", partial(change_bytes, change), REFUSED)
            for what, change in damages.items()
        ),
        *(
            Hostility(f"the index {what}", partial(make_index, content), REFUSED)
            for what, content in indices.items()
        ),
        Hostility("weights are a pickle that runs code", make_pickle, REFUSED),
        Hostility("weights are shards in a folder below", move_shards_below, SAME),
        Hostility("weights are a link", link_weights, SAME),
        Hostility(
            "an adapter beside the model is no JSON", partial(write, "adapter_config.json", b"["), REFUSED
        ),
        Hostility(
            "an adapter beside the model is of another one",
            partial(
                write, "adapter_config.json", b'{"base_model_name_or_path": "/nowhere", "peft_type": "LORA"}'
            ),
            REFUSED,
        ),
    ]


def _tokenizers() -> list[Hostility]:
    def more_tokens(tokenizer: dict[str, Any]) -> None:
        vocab = tokenizer["model"]["vocab"]
        tokenizer["model"]["vocab"] = {token: index + 10**6 for token, index in vocab.items()}

    changes: dict[str, Callable[[dict[str, Any]], Any]] = {
        "ids beyond the model's": more_tokens,
        "no vocabulary": lambda tokenizer: tokenizer["model"].update(vocab={}),
        "an unknown model": lambda tokenizer: tokenizer["model"].update(type="Nothing"),
        "an unknown normalizer": lambda tokenizer: tokenizer.update(normalizer={"type": "Nothing"}),
        "a broken pattern": lambda tokenizer: tokenizer.update(
            pre_tokenizer={
                "type": "Split",
                "pattern": {"Regex": "("},
                "behavior": "Isolated",
                "invert": False,
            }
        ),
        "a token with a negative id": lambda tokenizer: tokenizer.update(
            added_tokens=[{"id": -1, "content": "x"}]
        ),
        "a decoder of another kind": lambda tokenizer: tokenizer.update(decoder=7),
    }
    settings: list[dict[str, Any]] = [
        *({"tokenizer_class": value} for value in ("Nothing", 7, "BertTokenizer")),
        *({"model_max_length": value} for value in (-1, 0, "x", 1e39)),
        *({"padding_side": value} for value in ("up", 7)),
        *({"bos_token": value} for value in (7, {"content": 7}, [])),
        {"added_tokens_decoder": {"x": 7}},
        {"extra_special_tokens": 7},
    ]
    return [
        *(
            Hostility(f"tokenizer.json has {what}", partial(change_json, TOKENIZER, do))
            for what, do in changes.items()
        ),
        *(
            Hostility(f"tokenizer_config.json has {values}", partial(set_values, TOKENIZER_CONFIG, values))
            for values in settings
        ),
    ]


def _templates() -> list[Hostility]:
    loop = "{% for a in range(9**5) %}" * 4 + "{% endfor %}" * 4
    doubled = "{% set t = namespace(x='abcd') %}{% for i in range(60) %}{% set t.x = t.x ~ t.x %}{% endfor %}{{ t.x }}"
    texts = {
        "loops": loop,
        "builds gigabytes": "{{ 'a' * 99999999999 }}",
        "doubles a text": doubled,
        "writes a long prompt": "{{ 'a' * 20000000 }}",
        "has an error": "{% for %}",
        "divides by zero": "{{ 1 / 0 }}",
        "refuses": "{{ raise_exception('no') }}",
        "looks for classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "reads what is not there": "{{ messages[7].content.x }}",
    }
    found = [
        Hostility(f"the chat template {what}", partial(write, TEMPLATE, text.encode()), REFUSED, CHATS)
        for what, text in texts.items()
    ]
    found.append(
        Hostility("the chat template is no UTF-8", partial(write, TEMPLATE, b"\xff"), REFUSED, CHATS)
    )
    found.append(Hostility("the chat template is a folder", partial(make_folder, TEMPLATE), EITHER, CHATS))
    found.append(Hostility("the chat template is a FIFO", partial(make_fifo, TEMPLATE), REFUSED, CHATS))
    for value in (7, [], [{"name": 7}], {"default": 7}):
        do = partial(set_template, value)
        found.append(Hostility(f"the chat template is {value} in tokenizer_config.json", do, EITHER, CHATS))
    return found


def _generation() -> list[Hostility]:
    values: list[dict[str, Any]] = [
        *({"temperature": value} for value in (-1, "x", 0)),
        *({"max_new_tokens": value} for value in ("x", -1)),
        *({"eos_token_id": value} for value in ([10**9], "x", -1, [])),
        *({"num_beams": value} for value in (10**6, -1)),
        {"penalty_alpha": 0.6, "top_k": 4},
        {"stop_strings": ["a"]},
        {"num_return_sequences": 3},
        {"repetition_penalty": -1.0},
        {"guidance_scale": 2.0},
        {"cache_implementation": "nothing"},
        {"suppress_tokens": [10**9]},
        {"max_length": 1},
        {"watermarking_config": {"bias": "x"}},
    ]
    return [
        *(
            Hostility(f"generation has {each}", partial(set_values, GENERATION, each), EITHER, GENERATES)
            for each in values
        ),
        Hostility(f"{GENERATION} is a list", partial(write, GENERATION, b"[]"), EITHER, GENERATES),
        Hostility(f"{GENERATION} is cut", partial(write, GENERATION, b"{"), EITHER, GENERATES),
    ]


def _code() -> list[Hostility]:
    classes = {"AutoConfig": "foreign.C", "AutoModelForCausalLM": "foreign.M"}

    def foreign(folder: Path) -> None:
        (folder / "foreign.py").write_text(f"open({MARK!r}, 'w').close()\n")
        (folder / "custom_generate").mkdir()
        (folder / "custom_generate" / "generate.py").write_text(f"open({MARK!r}, 'w').close()\n")

    def model(folder: Path) -> None:
        foreign(folder)
        set_values(CONFIG, {"model_type": "foreign", "auto_map": classes}, folder)

    def known(folder: Path) -> None:
        foreign(folder)
        set_values(CONFIG, {"auto_map": classes}, folder)

    def tokenizer(folder: Path) -> None:
        foreign(folder)
        set_values(
            TOKENIZER_CONFIG,
            {"auto_map": {"AutoTokenizer": ["foreign.T", None]}, "tokenizer_class": "T"},
            folder,
        )

    return [
        Hostility("the model needs code", model, REFUSED),
        Hostility("a known model names code", known, SAME),
        Hostility("the tokenizer names code", tokenizer, SAME),
    ]
