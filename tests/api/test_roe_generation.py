"""RoE generates on a model of one's own as transformers does.

Broken by: padding that is read, an argument of `model.generate`, a stop string or a streamer
that is dropped in silence, a prompt that begins with two beginning tokens.
"""

from functools import partial
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import StoppingCriteria, StopStringCriteria, TextStreamer
from transformers.generation.streamers import BaseStreamer

import moe_lab
from moe_lab import RoE
from tests.support.models import left_padded, new_tokens_of, small_model
from tests.support.tiers import first_fast

PROMPTS = ["hello", "what is a cat and why", "abc" * 5]


@pytest.fixture(params=first_fast(["olmoe", "mixtral", "gpt_oss"]))
def model(request):
    return small_model(request.param)


@pytest.fixture
def roe(model, tokenizer):
    return RoE(model, tokenizer, n=3, temperature=0.7, seed=5)


# Batches


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True, "top_p": 0.9, "temperature": 1.5},
        {"do_sample": True, "num_return_sequences": 2},
        {},
    ],
    ids=["sampling", "several", "greedy"],
)
def test_a_batch_is_generated_as_its_prompts_alone(roe, options):
    together = roe.generate(PROMPTS, max_new_tokens=6, **options)
    prompts_alone = []
    for prompt in PROMPTS:
        prompts_alone += roe.generate([prompt], max_new_tokens=6, **options)
    assert together == prompts_alone
    assert len(together) == 3 * options.get("num_return_sequences", 1)


def test_several_samples_of_a_prompt_differ(roe):
    first, second = roe.generate("hello", max_new_tokens=6, do_sample=True, num_return_sequences=2)
    assert first != second


def test_recurrent_models_generate(tokenizer):
    model = small_model("qwen3_next")
    expected = []
    for prompt in PROMPTS[:2]:
        ids = torch.tensor([tokenizer.encode(prompt)])
        generated = model.generate(ids, max_new_tokens=4, do_sample=False)
        expected.append(generated[0, -4:].tolist())

    inputs = left_padded(tokenizer, PROMPTS[:2])
    base = RoE(model, tokenizer, n=1)
    ids = model.generate(**inputs, custom_generate=base, max_new_tokens=4, do_sample=False)
    assert new_tokens_of(ids, inputs) == expected


def test_recurrent_models_score(tokenizer):
    roe = RoE(small_model("qwen3_next"), tokenizer, n=2, temperature=0.9)
    [token] = tokenizer.encode("a")
    log_probs_V = roe.next_token_logprobs(tokenizer.encode("hello"))
    assert roe.loglikelihood("hello", "a") == pytest.approx(log_probs_V[token].item(), abs=1e-4)


# What ends a text


def test_a_stop_string_ends_a_text(roe, model, tokenizer):
    options = {"max_new_tokens": 30, "do_sample": True}
    whole = roe.generate("hello", **options)
    stop = next(character for character in whole[2:] if character.isascii())
    expected = whole[: whole.index(stop) + 1]

    text, _ = roe.generate(["hello", "a longer prompt"], stop_strings=[stop], **options)
    assert text == expected

    inputs = left_padded(tokenizer, ["hello"])
    criteria = [StopStringCriteria(tokenizer, stop)]
    ids = model.generate(**inputs, custom_generate=roe, stopping_criteria=criteria, **options)
    [new_tokens] = new_tokens_of(ids, inputs)
    assert tokenizer.decode(new_tokens) == expected


class Limits(StoppingCriteria):
    """Ends each sequence of a batch after its own number of new tokens, and keeps its inputs."""

    def __init__(self, limits: list[int], start: int):
        self.limits = torch.tensor(limits)
        self.start = start
        self.ids: list[list[list[int]]] = []
        """Of each call."""
        self.scores: list[Any] = []
        """Of each call."""

    def __call__(self, input_ids, scores, **options):
        self.ids.append(input_ids.tolist())
        self.scores.append(scores)
        return input_ids.shape[1] - self.start >= self.limits


class Steps(StoppingCriteria):
    """Ends the whole batch after some calls."""

    def __init__(self, longest: int):
        self.most = longest
        self.calls = 0

    def __call__(self, input_ids, scores, **options):
        self.calls += 1
        return torch.full((len(input_ids),), self.calls >= self.most)


LENGTHS = ["hello", "what is a cat and why", "abc " * 40]
WITHOUT_END = {"max_new_tokens": 8, "eos_token_id": None, "pad_token_id": 256}


def test_stopping_criteria_see_the_batch_as_those_of_transformers(model, tokenizer):
    inputs = left_padded(tokenizer, LENGTHS)
    start = inputs["input_ids"].shape[1]
    limits = [1, 3, 6]

    def generate(criteria: Limits, **options: Any) -> list[list[int]]:
        output = model.generate(
            **inputs,
            **WITHOUT_END,
            **options,
            return_dict_in_generate=True,
            output_scores=True,
            stopping_criteria=[criteria],
        )
        return output.sequences.tolist()

    transformers_criteria = Limits(limits, start)
    transformers_ids = generate(transformers_criteria)
    roe_criteria = Limits(limits, start)
    roe_ids = generate(roe_criteria, custom_generate=RoE(model, tokenizer, n=1))

    # transformers pads finished sequences only where there is an end token
    for row, limit in enumerate(limits):
        end = start + limit
        assert roe_ids[row][start:end] == transformers_ids[row][start:end]
        assert set(roe_ids[row][end:]) <= {256}

    for criteria in (transformers_criteria, roe_criteria):
        assert [len(scores) for scores in criteria.scores] == [1, 2, 3, 4, 5, 6]
    longest = 2
    for call in range(6):
        assert roe_criteria.ids[call][longest] == transformers_criteria.ids[call][longest]
        last_scores = roe_criteria.scores[call][-1][longest]
        expected_scores = transformers_criteria.scores[call][-1][longest]
        torch.testing.assert_close(last_scores, expected_scores, atol=1e-3, rtol=1e-3)


def test_criteria_that_count_steps_count_those_of_the_batch(roe, model, tokenizer):
    inputs = left_padded(tokenizer, LENGTHS)
    ids = model.generate(**inputs, **WITHOUT_END, custom_generate=roe, stopping_criteria=[Steps(4)])
    assert ids.shape[1] == inputs["input_ids"].shape[1] + 4


# Streamers


class Collected(BaseStreamer):
    def __init__(self):
        self.values = []
        self.ended = 0

    def put(self, value):
        self.values += value.flatten().tolist()

    def end(self):
        self.ended += 1


def test_a_streamer_gets_the_prompt_and_every_token(roe, tokenizer):
    streamer = Collected()
    text = roe.generate("hello", max_new_tokens=5, streamer=streamer)
    assert tokenizer.decode(streamer.values) == "hello" + text
    assert streamer.ended == 1


def test_a_streamer_of_model_generate_gets_every_token(roe, model, tokenizer):
    streamer = Collected()
    ids = model.generate(
        **left_padded(tokenizer, ["hello"]),
        custom_generate=partial(roe, streamer=streamer),
        streamer=streamer,
        max_new_tokens=5,
    )
    assert streamer.values == ids[0].tolist()


def test_transformers_streamer_prints_the_text(roe, tokenizer, capsys):
    text = roe.generate("hello", max_new_tokens=5)
    capsys.readouterr()
    roe.generate("hello", max_new_tokens=5, streamer=TextStreamer(tokenizer, skip_prompt=True))
    assert capsys.readouterr().out.strip("\n") == text.strip("\n")


def test_a_streamer_of_two_sequences_is_refused(roe):
    with pytest.raises(ValueError, match="one sequence"):
        roe.generate(["a", "b"], max_new_tokens=2, streamer=Collected())


# Inputs


def test_a_template_that_begins_with_bos_does_not_double_it(monkeypatch):
    """Of a tokenizer that adds the token itself, as Llama's does."""
    model, tokenizer = moe_lab.tiny()
    bos = tokenizer.convert_ids_to_tokens(0)
    tokenizer.bos_token = bos
    tokenizer._tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, 0)]
    )
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content }}"
    assert tokenizer("a")["input_ids"][0] == 0

    prompts = []
    generate = model.generate

    def record_and_generate(**options):
        prompts.append(options["input_ids"])
        return generate(**options)

    monkeypatch.setattr(model, "generate", record_and_generate)
    messages = [{"role": "user", "content": "hello"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False)
    RoE(model, tokenizer, n=2).generate(prompt, max_new_tokens=1)
    [ids] = prompts[0].tolist()
    assert ids.count(0) == 1


def test_inputs_that_the_engine_does_not_read_are_refused(olmoe, tokenizer):
    ids = left_padded(tokenizer, ["hello"])["input_ids"]
    roe = RoE(olmoe, tokenizer, n=2)
    with pytest.raises(ValueError, match="takes no token_type_ids: it reads token ids alone"):
        roe(olmoe, ids, [], [], olmoe.generation_config, token_type_ids=ids)
