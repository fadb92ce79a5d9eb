"""Small tokenizers of six families, each in the form in which its models are published."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CODE = (
    'def half(x):\n    """Half of x."""\n    return x / 2\n\n\n'  # a function with a docstring
    'def name():\n    return "é 你好"\n'
)
PROSE = "Question: Ann has 3 apples and gets 4 more. How many?\nAnswer: 3 + 4 = 7 apples.\n#### 7\n"
SPECIAL = ["<unk>", "<s>", "</s>"]
ROLES = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SIZE = 420
FAMILIES = {
    "byte-level BPE": False,
    "byte-level BPE, blank in front": False,
    "SentencePiece BPE": False,
    "SentencePiece BPE, blank in front": True,
    "SentencePiece unigram": False,
    "SentencePiece unigram, blank in front": True,
}
"""Whether the text of tokens depends on earlier tokens, by tokenizer.

OLMoE, RoBERTa, Gemma, Mixtral, none known, T5.
"""


@cache
def tokenizer_of(family: str) -> Any:
    """Trained on a program and a worked answer."""
    kind, _, option = family.partition(", ")
    backend = _BUILT[kind](blank_in_front=bool(option))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **ROLES)


def _texts() -> Iterator[str]:
    yield from [CODE, PROSE] * 20


def _byte_level(blank_in_front: bool) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=blank_in_front)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(_texts(), trainer)
    return backend


def _sentencepiece_bpe(blank_in_front: bool) -> Tokenizer:
    """Of Mixtral's form with a blank in front, else of Gemma's: unknown characters are bytes."""
    backend = Tokenizer(models.BPE())
    steps: list[Any] = [normalizers.Replace(" ", "▁")]
    decoding: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if blank_in_front:
        steps.insert(0, normalizers.Prepend("▁"))
        decoding.append(decoders.Strip(" ", 1, 0))
    # trained on lines, so that no token has the begin of the next one
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"▁*[^▁\n]+|\n"), "isolated")
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(decoding)
    ascii_texts = (text.encode("ascii", errors="ignore").decode() for text in _texts())
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(BYTES), special_tokens=SPECIAL, show_progress=False
    )
    backend.train_from_iterator(ascii_texts, trainer)
    backend.pre_tokenizer = None
    trained = json.loads(backend.to_str())["model"]
    vocabulary = dict(trained["vocab"])
    for byte in BYTES:
        vocabulary[byte] = len(vocabulary)
    merges = [tuple(pair) for pair in trained["merges"]]
    backend.model = models.BPE(
        vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    return backend


def _unigram(blank_in_front: bool) -> Tokenizer:
    scheme = "always" if blank_in_front else "never"
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme, split=False)
    trainer = trainers.UnigramTrainer(
        vocab_size=SIZE, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(_texts(), trainer)
    return backend


_BUILT = {
    "byte-level BPE": _byte_level,
    "SentencePiece BPE": _sentencepiece_bpe,
    "SentencePiece unigram": _unigram,
}
