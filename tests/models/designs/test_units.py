"""Words and sentences of real texts, against the pre-tokenizer's own pieces
and against sentences by hand.

Broken by: a boundary that is not the pre-tokenizer's, a special token within a word, text that
decoding strips, a kind of the wrong neighbour, transparent tokens in a row, padding within a unit.
"""

import re

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from moe_lab.errors import ModelError
from moe_lab.models.designs.units import (
    KINDS,
    SPECIAL,
    TRANSPARENT,
    UnitPlaces,
    UnitTables,
    unit_tables,
)
from moe_lab.models.source import TINY
from moe_lab.tasks.toy.corpus import documents
from tests.support.designs import VOCAB, arbitrary_units, parts, unit_starts
from tests.support.models import make_tokenizer

TEXT = (
    "It's what she'd say: \"No.\" (Really?) He left ... Then, in 1987, 3.14 of them came!\n"
    "I'm sure they'll pay $50 for `code_like` names, e.g. x2 or über-naïve ones. "
    "Done.'' So it ended.\n"
) * 3
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n"
    r"]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(pattern: str | None, merges: int = 150) -> PreTrainedTokenizerFast:
    """A byte-level BPE learned on TEXT, with GPT-2's pattern of words or the given one."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern is not None:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        bpe.pre_tokenizer = pre_tokenizers.Sequence([split, bpe.pre_tokenizer])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=257 + merges,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>")


def units_of(tokenizer, kind: str, text: str) -> list[str]:
    tables = unit_tables(tokenizer, kind)
    ids = tokenizer.encode(text, add_special_tokens=False)
    by_start: dict[int, list[int]] = {}
    for token, start in zip(ids, unit_starts(tables, ids), strict=True):
        by_start.setdefault(start, []).append(token)
    return [tokenizer.decode(unit) for unit in by_start.values()]


def pieces(tokenizer, text: str) -> list[str]:
    split = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in split]


@pytest.mark.parametrize("pattern", [None, GPT4], ids=["GPT-2", "GPT-4"])
@pytest.mark.parametrize("merges", [0, 150])
def test_words_of_a_byte_level_tokenizer_are_its_pre_tokenizers(pattern, merges):
    tokenizer = byte_level(pattern, merges)
    words = units_of(tokenizer, "word", TEXT)
    assert "".join(words) == TEXT
    if merges:
        assert words == pieces(tokenizer, TEXT)
    else:  # where every byte is a token, endings of several characters are not seen
        differ = set(parts(words)) ^ set(parts(pieces(tokenizer, TEXT)))
        assert len(differ) < len(words) / 10


def test_words_of_the_embedded_tokenizer_differ_in_second_newlines_alone():
    """GPT-2's pattern gives the second of two newlines to the text that follows.

    The first newline alone does not say which it is.
    """
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    text = "\n\n".join(
        document for index in range(5) for document in documents(seed=1, index=index, count=5)
    )
    word_parts = set(parts(units_of(tokenizer, "word", text)))
    expected = set(parts(pieces(tokenizer, text)))
    assert word_parts < expected
    assert len(word_parts) > 1000
    assert {text[place - 1 : place + 1] for place in expected - word_parts} == {"\n\n"}


def test_a_digit_is_a_word_where_the_pre_tokenizer_says_so():
    text = "Veven has 1987 marbles"
    assert units_of(AutoTokenizer.from_pretrained(TINY), "word", text)[2:7] == [
        " ",
        "1",
        "9",
        "8",
        "7",
    ]
    assert " 1987" in units_of(make_tokenizer(), "word", text)


@pytest.mark.parametrize(
    "tokenizer", [make_tokenizer(), byte_level(None), byte_level(GPT4)], ids=["bytes", "2", "4"]
)
def test_sentences(tokenizer):
    line = TEXT.splitlines()[0]
    units = units_of(tokenizer, "sentence", f"{line} Two:  e.g.this (one).] Or? that 3.14!\tEnd")
    assert units == [
        "It's what she'd say: \"No.\"",
        " (Really?)",
        " He left ...",
        " Then, in 1987, 3.14 of them came!",
        " Two:  e.g.this (one).]",
        " Or?",
        " that 3.14!",
        "\tEnd",
    ]


def test_sentences_of_the_toy_world():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    text = "\n\n".join(documents(seed=1, index=0, count=20))
    expected = [part for part in re.split(r"(?<=[.!?])(?=\s)|(?<=\n)", text) if part]
    assert units_of(tokenizer, "sentence", text) == expected


@pytest.mark.parametrize("kind", ["word", "sentence"])
def test_special_tokens_are_units_of_their_own(kind):
    tokenizer = make_tokenizer()
    tables = unit_tables(tokenizer, kind)
    assert tables.kind_V.shape == (257,)
    assert tables.begins_CV.shape == (KINDS, 257)
    assert tables.kind_V[256] == SPECIAL
    assert tables.begins_CV[:, 256].all()
    assert tables.begins_CV[SPECIAL].all()
    assert (tables.kind_V[:256] != SPECIAL).all()
    text = "some<|end|>thing<|end|><|end|>"
    assert units_of(tokenizer, kind, text) == ["some", "<|end|>", "thing", "<|end|>", "<|end|>"]


def test_words_of_other_kinds_of_tokenizers():
    """Alone, a piece would lose its white space (Metaspace) or join its prefix (WordPiece)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces_of = {"[UNK]": 0, "a": 1, "the": 2, "un": 3, "##seen": 4, ".": 5}
    words = Tokenizer(models.WordPiece(pieces_of, unk_token="[UNK]"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    tables = unit_tables(PreTrainedTokenizerFast(tokenizer_object=words), "word")
    assert unit_starts(tables, [2, 3, 4, 5]) == [0, 1, 1, 3]
    vocab = {symbol: i for i, symbol in enumerate(["▁", "a", "b", "▁a", "▁b"])}
    spaced = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a"), ("▁", "b")]))
    spaced.pre_tokenizer, spaced.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tables = unit_tables(PreTrainedTokenizerFast(tokenizer_object=spaced), "word")
    assert unit_starts(tables, [3, 2, 1, 4, 1]) == [0, 0, 0, 3, 3]


def test_a_tokenizer_without_words_is_refused():
    from tokenizers import pre_tokenizers

    tokenizer = make_tokenizer()
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.backend_tokenizer.pre_tokenizer = plain
    with pytest.raises(
        ModelError, match=r"does not split at white space. Words need .*router=token"
    ):
        unit_tables(tokenizer, "word")
    tokenizer.backend_tokenizer.pre_tokenizer = None
    with pytest.raises(ModelError, match="no pre-tokenizer, so it knows no words"):
        unit_tables(tokenizer, "word")
    assert torch.any(unit_tables(tokenizer, "sentence").kind_V == TRANSPARENT)
    with pytest.raises(ModelError, match="no fast tokenizer"):
        unit_tables(object(), "word")
    with pytest.raises(ValueError, match="choose one of word, sentence"):
        unit_tables(tokenizer, "token")


IDS = torch.randint(0, VOCAB, (20, 30), generator=torch.Generator().manual_seed(4))


def places(vocab_size: int = VOCAB) -> UnitPlaces:
    made = UnitPlaces(vocab_size)
    made.set(arbitrary_units())
    return made


def test_units_begin_where_the_loop_says():
    units = places()(IDS, torch.ones_like(IDS, dtype=torch.bool), None)
    expected = [unit_starts(arbitrary_units(), row.tolist()) for row in IDS]
    assert units.first_BS.tolist() == expected
    assert 3 < sum(len(set(row)) for row in expected) / 20 < 20


def test_padding_is_no_part_of_a_unit_whatever_its_token():
    real = torch.ones_like(IDS, dtype=torch.bool)
    real[:, :4] = False
    units = places()(IDS, real, None)
    units_alone = places()(IDS[:, 4:], real[:, 4:], None)
    assert units.first_BS[:, :4].tolist() == [[0, 1, 2, 3]] * 20
    assert units.first_BS[:, 4:].equal(units_alone.first_BS + 4)


def test_tokens_that_the_tokenizer_lacks_are_special_and_no_tokenizer_may_be_larger():
    larger = places(VOCAB + 5)
    assert (larger.kind_V[VOCAB:] == SPECIAL).all()
    assert larger.begins_CV[:, VOCAB:].all()
    with pytest.raises(ValueError, match="The tokenizer has 300 tokens, and vocab_size=299"):
        places(VOCAB - 1)


def test_tables_are_buffers_that_stay_whole_numbers():
    module = places().to(torch.bfloat16)
    assert module.kind_V.dtype == torch.int8
    assert module.begins_CV.dtype == torch.bool
    second_tables = UnitPlaces(VOCAB)
    second_tables.load_state_dict(module.state_dict())
    assert UnitTables(second_tables.kind_V, second_tables.begins_CV).kind_V.equal(
        arbitrary_units().kind_V
    )
    assert second_tables(IDS, torch.ones_like(IDS, dtype=torch.bool), None).first_BS.any()
