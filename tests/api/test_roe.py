"""RoE on a model of one's own is RoE as the paper defines it, and generates as transformers does.

Broken by: a wrong key of the noise, padding that is read, an argument of `model.generate`, a stop string or a streamer that
is dropped in silence, a form of texts or token ids that is refused, a model that is read wrongly.
"""

import json
import random
from functools import cache, partial

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import StoppingCriteria, StopStringCriteria, TextStreamer
from transformers.generation.streamers import BaseStreamer

import moe_lab
from moe_lab import RoE
from moe_lab.api.language_model import loaded_model
from moe_lab.errors import ConfigError
from tests.support import roe_reference, rounding
from tests.support.command import run_command
from tests.support.models import left_padded, make_model, small_model
from tests.support.tiers import first_fast

FAMILIES = ("olmoe", "mixtral", "gpt_oss")
PROMPTS = ["hello", "what is a cat and why", "abc" * 5]
N, TEMPERATURE, SEED = 3, 0.7, 5


@cache
def model_and_reference(family):
    model = small_model(family)
    return model, roe_reference.in_float64(model)


@pytest.fixture(params=first_fast(FAMILIES))
def family(request):
    return request.param


@pytest.fixture
def model(family):
    return model_and_reference(family)[0]


@pytest.fixture
def roe(model, tokenizer):
    return RoE(model, tokenizer, n=N, temperature=TEMPERATURE, seed=SEED)


def new_of(ids, inputs):
    """Generated tokens of each sequence, without padding."""
    new = ids[:, inputs["input_ids"].shape[1] :].tolist()
    return [row[: row.index(256) + 1] if 256 in row else row for row in new]


def test_it_says_what_it_is(roe):
    assert (
        repr(roe)
        == f"RoE({type(roe.model).__name__}, n={N}, temperature={TEMPERATURE}, cache=clean)"
    )


def test_temperatures_are_a_tuple_or_the_path_of_a_profile_too(olmoe, tokenizer, tmp_path):
    own = [0.1 * (layer + 1) for layer in range(4)]
    assert RoE(olmoe, tokenizer, n=2, temperature=tuple(own)).temperatures == own
    with pytest.raises(ConfigError, match="best.yaml is no profile"):
        RoE(olmoe, tokenizer, n=2, temperature=tmp_path / "best.yaml")


def test_next_tokens_are_those_of_a_slow_reference(family, roe):
    rng = random.Random(0)
    double = model_and_reference(family)[1]
    texts = [[rng.randrange(256) for _ in range(size)] for size in (1, 9, 14)]
    found = roe.next_token_logprobs(texts)
    for ids, logprobs in zip(texts, found, strict=True):
        expected = roe_reference.next_token_probs(double, ids, ids, N, roe.temperatures, SEED)
        rounding.assert_close(logprobs, expected.log().float())
    rounding.assert_close(roe.next_token_logprobs(torch.tensor(texts[1])), found[1])


@pytest.mark.parametrize("n", [4, 5])
def test_antithetic_noise_is_that_of_a_slow_reference(tokenizer, n):
    model, double = model_and_reference("olmoe")
    ids = [7, 9, 1, 30, 2]
    expected = {}
    for noise in ("gumbel", "antithetic"):
        roe = RoE(model, tokenizer, n=n, temperature=1.0, seed=SEED, noise=noise)
        keys = {"antithetic": noise == "antithetic"}
        probs = roe_reference.next_token_probs(double, ids, ids, n, roe.temperatures, SEED, **keys)
        rounding.assert_close(roe.next_token_logprobs([ids])[0], probs.log().float())
        expected[noise] = probs.tolist()
    assert expected["gumbel"] != expected["antithetic"]


def test_log_likelihoods_and_greedy_text_are_those_of_a_slow_reference(family, roe, tokenizer):
    double = model_and_reference(family)[1]
    context, continuation = tokenizer.encode("what is"), tokenizer.encode(" a cat")
    expected, _ = roe_reference.score(double, context, continuation, N, roe.temperatures, SEED)
    assert roe.loglikelihood("what is", " a cat") == rounding.approx(expected, tokens=6)
    several = roe.loglikelihood(["what is", "hello"], [" a cat", " a cat"])
    assert several[0] == rounding.approx(expected, tokens=6) and several[0] != several[1]
    assert roe.loglikelihood("what is", [" a cat"]) == [pytest.approx(expected, abs=1e-3)]
    expected, gap = roe_reference.generate(double, context, N, roe.temperatures, 4, SEED)
    assert gap > 1e-4
    inputs = left_padded(tokenizer, ["what is", "a longer prompt"])
    options = {"max_new_tokens": 4, "eos_token_id": None, "pad_token_id": 256}
    ids = roe.model.generate(**inputs, custom_generate=roe, **options)
    assert ids[0, inputs["input_ids"].shape[1] :].tolist() == expected


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True, "top_p": 0.9, "temperature": 1.5},
        {"do_sample": True, "num_return_sequences": 2},
        {},
    ],
    ids=["sampling", "several", "greedy"],
)
def test_a_batch_is_generated_as_its_prompts_alone(roe, tokenizer, options):
    together = roe.generate(PROMPTS, max_new_tokens=6, **options)
    count = options.get("num_return_sequences", 1)
    alone = [roe.generate([prompt], max_new_tokens=6, **options) for prompt in PROMPTS]
    assert together == [text for texts in alone for text in texts]
    assert len(together) == 3 * count
    if count == 2:
        assert together[0] != together[1]


def test_recurrent_models_generate_and_score(tokenizer):
    model = small_model("qwen3_next")
    inputs = left_padded(tokenizer, PROMPTS[:2])
    prompts, greedy = map(tokenizer.encode, PROMPTS[:2]), {"max_new_tokens": 4, "do_sample": False}
    plain = [model.generate(torch.tensor([prompt]), **greedy) for prompt in prompts]
    one = model.generate(**inputs, custom_generate=RoE(model, tokenizer, n=1), **greedy)
    assert [new_of(one, inputs)] == [[ids[0, -4:].tolist() for ids in plain]]
    roe = RoE(model, tokenizer, n=2, temperature=0.9)
    ids, [token] = tokenizer.encode("hello"), tokenizer.encode("a")
    expected = roe.next_token_logprobs(ids)[token].item()
    assert roe.loglikelihood("hello", "a") == pytest.approx(expected, abs=1e-4)


def test_the_model_is_left_as_it_was(olmoe, tokenizer):
    inputs = left_padded(tokenizer, PROMPTS)
    before = olmoe.generate(**inputs, max_new_tokens=5, do_sample=False)
    hooks = [list(module._forward_hooks) for module in olmoe.modules()]
    RoE(olmoe, tokenizer, n=4, temperature=2.0).generate(PROMPTS, max_new_tokens=5)
    assert torch.equal(olmoe.generate(**inputs, max_new_tokens=5, do_sample=False), before)
    assert [list(module._forward_hooks) for module in olmoe.modules()] == hooks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("olmoe", {}),
        ("mixtral", {"do_sample": True, "temperature": 0.8}),
        ("gpt_oss", {"do_sample": True}),
    ],
    ids=FAMILIES,
)
def test_answers_are_those_of_the_command(family, options, tmp_path, capsys, tokenizer):
    """Of stored answers to toy_choice and toy_math."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "model"
    small_model(family).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = {"max_gen_toks": 12} | options
    gen_kwargs = ",".join(f"{key}={value}" for key, value in settings.items())
    ended = run_command(
        capsys, "-m", "method=roe", f"model.path={folder}", "task=toy_choice,toy_math", "limit=3", "method.n=3",
        "method.temperature=0.6", "baseline=false", "seed=2", f"gen_kwargs={gen_kwargs}", f"output_dir={tmp_path}",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    roe = RoE(model, AutoTokenizer.from_pretrained(folder), n=3, temperature=0.6, seed=2)
    samples = []
    for file in tmp_path.glob("runs/*/samples_*.jsonl"):
        samples += [json.loads(line) for line in file.open()]
    scored = [sample for sample in samples if "acc" in sample]
    generated = [sample for sample in samples if "exact_match" in sample]
    assert len(scored) == len(generated) == 3
    for sample in scored:
        pairs = [list(arguments.values()) for arguments in sample["arguments"].values()]
        found = roe.loglikelihood([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        stored = [float(answer[0][0]) for answer in sample["resps"]]
        assert len(found) == len(stored) > 1
        assert found == rounding.approx(stored, tokens=12)
    for sample in generated:
        [request] = sample["arguments"].values()
        prompt, generation = request.values()
        stops = generation["until"]
        text = roe.generate(prompt, max_new_tokens=12, stop_strings=stops, **options)
        assert cut(text, stops) == sample["resps"][0][0]


def cut(text, stop):
    return min((text.split(each)[0] for each in stop), key=len)


# Forms of texts, stop strings and streamers


def test_a_stop_string_ends_a_text(roe, model, tokenizer):
    whole = roe.generate("hello", max_new_tokens=30, do_sample=True)
    stop = next(character for character in whole[2:] if character.isascii())
    cut = roe.generate(
        ["hello", "a longer prompt"], max_new_tokens=30, do_sample=True, stop_strings=[stop]
    )
    assert cut[0] == whole[: whole.index(stop) + 1]
    inputs = left_padded(tokenizer, ["hello"])
    criteria = [StopStringCriteria(tokenizer, stop)]
    ids = model.generate(
        **inputs, custom_generate=roe, max_new_tokens=30, do_sample=True, stopping_criteria=criteria
    )
    assert tokenizer.decode(new_of(ids, inputs)[0]) == cut[0]


class Limits(StoppingCriteria):
    """Ends each sequence of a batch after a number of new tokens of its own, and keeps what it gets."""

    def __init__(self, limits: list[int], start: int):
        self.limits, self.start, self.got = torch.tensor(limits), start, []

    def __call__(self, input_ids, scores, **options):
        self.got.append((input_ids.tolist(), scores))
        return input_ids.shape[1] - self.start >= self.limits


class Steps(StoppingCriteria):
    """Ends the whole batch after some calls."""

    def __init__(self, most: int):
        self.most, self.calls = most, 0

    def __call__(self, input_ids, scores, **options):
        self.calls += 1
        return torch.full((len(input_ids),), self.calls >= self.most)


LENGTHS = ["hello", "what is a cat and why", "abc " * 40]


def test_stopping_criteria_see_the_batch_as_those_of_transformers(model, tokenizer):
    roe, inputs = RoE(model, tokenizer, n=1), left_padded(tokenizer, LENGTHS)
    start = inputs["input_ids"].shape[1]
    options = {"max_new_tokens": 8, "eos_token_id": None, "pad_token_id": 256}
    options |= {"return_dict_in_generate": True, "output_scores": True}
    found = []
    for more in ({}, {"custom_generate": roe}):
        limits = Limits([1, 3, 6], start)
        ids = model.generate(**inputs, **options, **more, stopping_criteria=[limits]).sequences
        found.append((ids.tolist(), limits.got))
    (theirs, their_calls), (ours, our_calls) = found
    # transformers pads finished sequences only where there is an end token
    for row, limit in enumerate((1, 3, 6)):
        assert ours[row][start : start + limit] == theirs[row][start : start + limit]
        assert set(ours[row][start + limit :]) <= {256}
    assert (
        [len(scores) for _, scores in our_calls]
        == [len(scores) for _, scores in their_calls]
        == [*range(1, 7)]
    )
    for (our_ids, our_scores), (their_ids, their_scores) in zip(
        our_calls, their_calls, strict=True
    ):
        assert our_ids[2] == their_ids[2]
        torch.testing.assert_close(our_scores[-1][2], their_scores[-1][2], atol=1e-3, rtol=1e-3)


def test_criteria_that_count_steps_count_those_of_the_batch(roe, model, tokenizer):
    inputs = left_padded(tokenizer, LENGTHS)
    ids = model.generate(
        **inputs,
        custom_generate=roe,
        max_new_tokens=8,
        eos_token_id=None,
        pad_token_id=256,
        stopping_criteria=[Steps(4)],
    )
    assert ids.shape[1] == inputs["input_ids"].shape[1] + 4


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
        **inputs,
        custom_generate=partial(roe, streamer=streamer),
        streamer=streamer,
        max_new_tokens=5,
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
    assert roe.loglikelihood(["hello", "hello"], [" you", " you"]) == pytest.approx(
        [one, one], abs=1e-4
    )
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


def test_a_seed_of_a_call_is_that_of_another_object(model, tokenizer, roe, olmoe):
    """Noise and samples; afterwards the object has its own seed again, and counts every decision once."""
    options = {"max_new_tokens": 8, "do_sample": True}
    own, greedy = roe.generate("hello", **options), roe.generate("hello", max_new_tokens=8)
    decided = roe.lm.cost["noisy_decisions"]
    other = RoE(model, tokenizer, n=3, temperature=0.7, seed=6)
    assert roe.generate("hello", seed=6, **options) == other.generate("hello", **options) != own
    assert roe.lm.cost["noisy_decisions"] == decided + other.lm.cost["noisy_decisions"]
    assert (
        roe.generate("hello", **options) == own
        and roe.generate("hello", max_new_tokens=8) == greedy
    )
    texts = {roe.generate("hello", seed=seed, **options) for seed in range(5)}
    assert len(texts) == 5
    inputs = left_padded(tokenizer, ["hello"])
    ids = model.generate(**inputs, custom_generate=partial(roe, seed=6), **options)
    text = tokenizer.decode(new_of(ids, inputs)[0], skip_special_tokens=True)
    assert text == other.generate("hello", **options)
    one = RoE(olmoe, tokenizer, n=1)
    texts = {
        one.generate("hello", seed=seed, max_new_tokens=8, do_sample=True) for seed in range(5)
    }
    assert len(texts) == 5


def test_a_template_that_begins_with_bos_does_not_double_it(monkeypatch):
    """Of a tokenizer that adds the token itself, as Llama's does."""
    model, tokenizer = moe_lab.tiny()
    bos = tokenizer.convert_ids_to_tokens(0)
    tokenizer.bos_token = bos
    tokenizer._tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, 0)]
    )
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content }}"
    roe = RoE(model, tokenizer, n=2)
    assert tokenizer("a")["input_ids"][0] == 0
    prompts = []
    generate = model.generate
    monkeypatch.setattr(
        model, "generate", lambda **k: prompts.append(k["input_ids"]) or generate(**k)
    )
    messages = [{"role": "user", "content": "hello"}]
    roe.generate(tokenizer.apply_chat_template(messages, tokenize=False), max_new_tokens=1)
    assert prompts[0][0].tolist().count(0) == 1


def test_inputs_that_the_engine_does_not_read_are_refused(olmoe, tokenizer):
    inputs = left_padded(tokenizer, ["hello"])
    asked = RoE(olmoe, tokenizer, n=2)
    with pytest.raises(ValueError, match="takes no token_type_ids: it reads token ids alone"):
        asked(
            olmoe,
            inputs["input_ids"],
            [],
            [],
            olmoe.generation_config,
            token_type_ids=inputs["input_ids"],
        )
