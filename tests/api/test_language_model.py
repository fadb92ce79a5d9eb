"""Breaks if a stop string or a streamer is dropped, if a form of texts or token ids is refused, or if a model is read
wrongly.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import StopStringCriteria, TextStreamer
from transformers.generation.streamers import BaseStreamer

import moe_lab
from moe_lab import RoE
from moe_lab.api.language_model import loaded_model
from moe_lab.errors import ConfigError
from tests.support.models import left_padded, make_model, small_model
from tests.support.tiers import first_fast


@pytest.fixture(params=first_fast(("olmoe", "gpt_oss", "mixtral"), 2))
def model(request):
    return small_model(request.param)


@pytest.fixture
def roe(model, tokenizer):
    return RoE(model, tokenizer, n=3, temperature=0.7, seed=5)


def new_of(ids, inputs):
    """Generated tokens of each sequence, without padding."""
    new = ids[:, inputs["input_ids"].shape[1] :].tolist()
    return [row[: row.index(256) + 1] if 256 in row else row for row in new]


def test_a_stop_string_ends_a_text(roe, model, tokenizer):
    whole = roe.generate("hello", max_new_tokens=30, do_sample=True)
    stop = next(character for character in whole[2:] if character.isascii())
    cut = roe.generate(["hello", "a longer prompt"], max_new_tokens=30, do_sample=True, stop_strings=[stop])
    assert cut[0] == whole[: whole.index(stop) + 1]
    inputs = left_padded(tokenizer, ["hello"])
    criteria = [StopStringCriteria(tokenizer, stop)]
    ids = model.generate(
        **inputs, custom_generate=roe, max_new_tokens=30, do_sample=True, stopping_criteria=criteria
    )
    assert tokenizer.decode(new_of(ids, inputs)[0]) == cut[0]


class Collected(BaseStreamer):
    def __init__(self):
        self.values, self.ended = [], 0

    def put(self, value):
        self.values += value.flatten().tolist()

    def end(self):
        self.ended += 1


def test_a_streamer_gets_the_prompt_and_every_token(roe, model, tokenizer, capsys):
    streamer = Collected()
    text = roe.generate("hello", max_new_tokens=5, streamer=streamer)
    assert tokenizer.decode(streamer.values) == "hello" + text and streamer.ended == 1
    inputs, streamer = left_padded(tokenizer, ["hello"]), Collected()
    ids = model.generate(
        **inputs, custom_generate=partial(roe, streamer=streamer), streamer=streamer, max_new_tokens=5
    )
    assert streamer.values == ids[0].tolist()
    roe.generate("hello", max_new_tokens=5, streamer=TextStreamer(tokenizer, skip_prompt=True))
    assert capsys.readouterr().out.strip("\n") == text.strip("\n")
    with pytest.raises(ValueError, match="one sequence"):
        roe.generate(["a", "b"], max_new_tokens=2, streamer=Collected())


def test_one_text_and_several(roe, tokenizer):
    assert isinstance(roe.generate("hello", max_new_tokens=2), str)
    assert roe.generate(["hello"], max_new_tokens=2) == [roe.generate("hello", max_new_tokens=2)]
    assert len(roe.generate("hello", max_new_tokens=2, do_sample=True, num_return_sequences=3)) == 3
    one = roe.loglikelihood("hello", " you")
    assert roe.loglikelihood(["hello", "hello"], [" you", " you"]) == pytest.approx([one, one], abs=1e-4)
    ids = tokenizer.encode("hello")
    V = roe.model.config.vocab_size
    forms = (ids, [ids], torch.tensor(ids), torch.tensor([ids]), [torch.tensor(ids)])
    shapes = [tuple(roe.next_token_logprobs(form).shape) for form in forms]
    assert shapes == [(V,), (1, V), (V,), (1, V), (1, V)]


# The model


def test_facts_are_those_of_the_configuration(tokenizer):
    loaded = loaded_model(make_model("mixtral").bfloat16(), tokenizer)
    facts = loaded.facts
    assert (facts.family, facts.dtype, facts.experts, facts.top_k) == ("mixtral", "bfloat16", 6, 2)
    assert facts.moe_layers == 4 and facts.routers is not None and loaded.device.type == "cpu"


def test_a_seed_of_a_call_is_that_of_another_object(model, tokenizer, roe):
    """Noise and samples; afterwards the object has its own seed again, and counts every decision once."""
    options = {"max_new_tokens": 8, "do_sample": True}
    own, greedy = roe.generate("hello", **options), roe.generate("hello", max_new_tokens=8)
    decided = roe.lm.cost["noisy_decisions"]
    other = RoE(model, tokenizer, n=3, temperature=0.7, seed=6)
    assert roe.generate("hello", seed=6, **options) == other.generate("hello", **options) != own
    assert roe.lm.cost["noisy_decisions"] == decided + other.lm.cost["noisy_decisions"]
    assert roe.generate("hello", **options) == own and roe.generate("hello", max_new_tokens=8) == greedy
    texts = {roe.generate("hello", seed=seed, **options) for seed in range(5)}
    assert len(texts) == 5
    inputs = left_padded(tokenizer, ["hello"])
    ids = model.generate(**inputs, custom_generate=partial(roe, seed=6), **options)
    assert tokenizer.decode(new_of(ids, inputs)[0], skip_special_tokens=True) == other.generate(
        "hello", **options
    )


def test_one_sample_takes_a_seed_too(olmoe, tokenizer):
    one = RoE(olmoe, tokenizer, n=1)
    texts = {one.generate("hello", seed=seed, max_new_tokens=8, do_sample=True) for seed in range(5)}
    assert len(texts) == 5


def test_chat_messages_are_prompts_by_the_template():
    model, tokenizer = moe_lab.tiny()
    roe = RoE(model, tokenizer, n=2)
    asked = [{"role": "user", "content": "What is the workplace of Hara?"}]
    begun = [*asked, {"role": "assistant", "content": "The"}]
    prompts = [
        tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True),
        tokenizer.apply_chat_template(begun, tokenize=False, continue_final_message=True),
    ]
    expected = roe.generate(prompts, max_new_tokens=6)
    assert roe.generate(asked, max_new_tokens=6) == expected[0]
    assert roe.generate([asked, begun], max_new_tokens=6) == expected
    with pytest.raises(ConfigError, match="a chat message is"):
        roe.generate([{"role": "user"}], max_new_tokens=6)


def test_a_template_that_begins_with_bos_does_not_double_it(monkeypatch):
    """Of a tokenizer that adds the token itself, as Llama's does."""
    model, tokenizer = moe_lab.tiny()
    first = tokenizer.convert_ids_to_tokens(0)
    tokenizer.bos_token = first
    tokenizer._tokenizer.post_processor = TemplateProcessing(
        single=f"{first} $A", special_tokens=[(first, 0)]
    )
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content }}"
    roe = RoE(model, tokenizer, n=2)
    assert tokenizer("a")["input_ids"][0] == 0
    prompts = []
    generate = model.generate
    monkeypatch.setattr(model, "generate", lambda **k: prompts.append(k["input_ids"]) or generate(**k))
    roe.generate([{"role": "user", "content": "hello"}], max_new_tokens=1)
    assert prompts[0][0].tolist().count(0) == 1
