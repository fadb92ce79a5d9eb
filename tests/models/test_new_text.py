"""Answers are the text of new tokens as it is after their prompts, in six families of tokenizers.

Broken by: new tokens that are decoded alone (a SentencePiece tokenizer of Mixtral's form
drops their first blank), in tasks, in lm-eval's own code, in `RoE.generate` or in a stream;
byte-level tokenizers that read the prompt again; a count of answers that differ
from lm-eval's which counts others, too.
"""

from typing import Any

import pytest
from lm_eval.models.huggingface import HFLM
from torch import cat, tensor
from transformers import TextIteratorStreamer

from moe_lab import RoE
from moe_lab.engine.lm import EngineLM
from moe_lab.models.new_text import NewText, depends_on_context, tokens_of
from tests.support.ensembles import answered
from tests.support.families import COMMON, ZOO
from tests.support.fixed_replies import reply_with_tokens
from tests.support.models import build, make_model
from tests.support.tokenizers import CODE, FAMILIES, PROSE, SIZE, tokenizer_of

PROMPT = "def half(x):\n"
COMPLETION = CODE.removeprefix(PROMPT)
MIXTRAL = "SentencePiece BPE, blank in front"
STRIPPING = [family for family, strips in FAMILIES.items() if strips]
ENDS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 2)


def ids_of(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_text_after_every_prompt_is_the_rest_of_the_text(family):
    tokenizer = tokenizer_of(family)
    assert depends_on_context(tokenizer) == FAMILIES[family]
    new_text = NewText(tokenizer)
    for original in (CODE, PROSE):
        # a byte-level tokenizer with a blank in front decodes it, too
        text = " " + original if family == "byte-level BPE, blank in front" else original
        ids = ids_of(tokenizer, original)
        tested = 0
        for count in range(1, len(ids)):
            begin = tokenizer.decode(ids[:count])
            if text.startswith(begin):  # else it ends in part of a character
                tested += 1
                assert new_text(ids[:count], ids[count:]) == text[len(begin) :]
        assert tested > 10


@pytest.mark.parametrize("family", ["byte-level BPE", MIXTRAL])
def test_a_character_that_the_prompt_begins_is_completed(family):
    tokenizer = tokenizer_of(family)
    ids = ids_of(tokenizer, "aß€")
    # the last character has three tokens
    assert NewText(tokenizer)(ids[:-1], ids[-1:]).endswith("€")


def test_byte_level_tokenizers_do_not_read_the_prompt(monkeypatch):
    tokenizer = tokenizer_of("byte-level BPE")
    new_text = NewText(tokenizer)
    ids = ids_of(tokenizer, CODE)
    read = []
    decode = tokenizer.decode

    def counted(ids: list[int], **options: Any) -> str:
        read.append(len(ids))
        return decode(ids, **options)

    monkeypatch.setattr(tokenizer, "decode", counted)
    new_text(ids[:20], ids[20:])
    assert read == [len(ids) - 20]


def test_the_tokens_of_a_text_are_those_that_begin_in_it():
    tokenizer = tokenizer_of(MIXTRAL)
    prompt = ids_of(tokenizer, PROMPT)
    new = ids_of(tokenizer, CODE)[len(ids_of(tokenizer, PROMPT)) :]
    new_text = NewText(tokenizer)
    for count in range(1, len(new)):
        text = new_text(prompt, new[:count])
        assert tokens_of(text, prompt, new, 99, new_text) == new[:count]
    inside = new_text(prompt, new[:1])[:-1]
    assert tokens_of(inside, prompt, new, 99, new_text) == new[:1]
    assert tokens_of(COMPLETION, prompt, new, 4, new_text) == new[:4]


def given(monkeypatch: pytest.MonkeyPatch, tokens: list[int]) -> None:
    """Let the reply to every prompt be these tokens, in our engine and in lm-eval's own code."""

    def generate(self: Any, context: Any, **options: Any) -> Any:
        return cat([context, tensor([tokens] * len(context))], dim=1)

    reply_with_tokens(monkeypatch, tokens)
    monkeypatch.setattr(HFLM, "_model_generate", generate)


@pytest.mark.parametrize("own_code", [True, False], ids=["engine", "hf"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_keeps_the_blank_at_its_beginning(monkeypatch, family, own_code):
    """The prompt is the first line of the code, and the reply is the rest."""
    tokenizer = tokenizer_of(family)
    code_ids = ids_of(tokenizer, CODE)
    prompt_ids = ids_of(tokenizer, PROMPT)
    while code_ids[: len(prompt_ids)] != prompt_ids:
        prompt_ids.pop()  # a token has the end of the line and the blanks after it
    prompt = CODE[: len(tokenizer.decode(prompt_ids).removeprefix(" "))]
    reply_ids = code_ids[len(prompt_ids) :]
    given(monkeypatch, [*reply_ids, 2])
    if own_code:
        model = make_model("olmoe", vocab_size=SIZE, **ENDS)
    else:
        model = build("qwen3_next", COMMON | ZOO["qwen3_next"] | ENDS | {"vocab_size": SIZE})
    lm = EngineLM(model, tokenizer, progress=False, add_bos_token=False)
    assert (lm.engine is not None) == own_code
    options = {"until": ["\n\n\n"], "max_gen_toks": 60}
    answers = answered(lm, "generate_until", [(prompt, options), (prompt, options)])
    expected = CODE.removeprefix(prompt).split("\n\n\n")[0]
    assert answers == [expected, expected]

    depends_on_prompt = FAMILIES[family]
    is_alone_the_same = tokenizer.decode(reply_ids).startswith(expected)
    assert is_alone_the_same == (not depends_on_prompt)
    assert lm.cost["decoded_in_context"] == (2 if depends_on_prompt else 0)


@pytest.mark.parametrize("family", STRIPPING)
def test_generate_and_streams_keep_it_too(family):
    tokenizer = tokenizer_of(family)
    roe = RoE(make_model("olmoe", vocab_size=SIZE, **ENDS), tokenizer, n=2)
    tokens = ids_of(tokenizer, "say half of it")[1:]
    start = len(roe.lm.encode_prompt("say"))

    def force(input_ids: Any, scores: Any) -> Any:
        scores = scores * 0
        for row in range(len(scores)):
            scores[row, tokens[input_ids.shape[1] - start]] = 100
        return scores

    options = {"max_new_tokens": len(tokens), "logits_processor": [force]}
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    prompt_ids = roe.lm.encode_prompt("say")
    expected = tokenizer.decode(prompt_ids + tokens).removeprefix(tokenizer.decode(prompt_ids))
    assert roe.generate("say", streamer=streamer, **options) == expected
    assert "".join(streamer) == expected
    texts = roe.generate("say", num_return_sequences=2, do_sample=True, **options)
    assert texts == [expected, expected]
