"""RoE on a model of one's own is RoE as the paper defines it.

Broken by: a wrong key of the noise, padding that is read, a form of texts or token ids
that is refused, a model that is read wrongly or changed, a seed that stays after its call.
"""

import json
import random
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from moe_lab import RoE
from moe_lab.api.language_model import loaded_model
from moe_lab.errors import ConfigError
from tests.support import roe_reference, rounding
from tests.support.command import run_command
from tests.support.models import left_padded, make_model, new_tokens_of, small_model
from tests.support.tiers import first_fast

FAMILIES = ("olmoe", "mixtral", "gpt_oss")
PROMPTS = ["hello", "what is a cat and why", "abc" * 5]
N = 3
TEMPERATURE = 0.7
SEED = 5


@cache
def exact(family: str) -> Any:
    """The model in float64."""
    return roe_reference.in_float64(small_model(family))


@pytest.fixture(params=first_fast(FAMILIES))
def family(request):
    return request.param


@pytest.fixture
def model(family):
    return small_model(family)


@pytest.fixture
def roe(model, tokenizer):
    return RoE(model, tokenizer, n=N, temperature=TEMPERATURE, seed=SEED)


def test_it_says_what_it_is(roe):
    class_name = type(roe.model).__name__
    assert repr(roe) == f"RoE({class_name}, n={N}, temperature={TEMPERATURE}, cache=clean)"


def test_temperatures_are_a_tuple_too(olmoe, tokenizer):
    roe = RoE(olmoe, tokenizer, n=2, temperature=(0.1, 0.2, 0.3, 0.4))
    assert roe.temperatures == [0.1, 0.2, 0.3, 0.4]


def test_temperatures_are_the_path_of_a_profile_too(olmoe, tokenizer, tmp_path):
    with pytest.raises(ConfigError, match="best.yaml is no profile"):
        RoE(olmoe, tokenizer, n=2, temperature=tmp_path / "best.yaml")


# Against a slow reference


def test_next_tokens_are_those_of_a_slow_reference(family, roe):
    rng = random.Random(0)
    texts = []
    for length in (1, 9, 14):
        texts.append([rng.randrange(256) for _ in range(length)])

    log_probs = roe.next_token_logprobs(texts)

    for ids, log_probs_V in zip(texts, log_probs, strict=True):
        expected_V = roe_reference.next_token_probs(
            exact(family), ids, ids, N, roe.temperatures, SEED
        )
        rounding.assert_close(log_probs_V, expected_V.log().float())
    rounding.assert_close(roe.next_token_logprobs(torch.tensor(texts[1])), log_probs[1])


@pytest.mark.parametrize("n", [4, 5])
def test_antithetic_noise_is_that_of_a_slow_reference(tokenizer, n):
    model = small_model("olmoe")
    ids = [7, 9, 1, 30, 2]
    expected = {}
    for noise in ("gumbel", "antithetic"):
        roe = RoE(model, tokenizer, n=n, temperature=1.0, seed=SEED, noise=noise)
        probs_V = roe_reference.next_token_probs(
            exact("olmoe"),
            ids,
            ids,
            n,
            roe.temperatures,
            SEED,
            antithetic=noise == "antithetic",
        )
        [log_probs_V] = roe.next_token_logprobs([ids])
        rounding.assert_close(log_probs_V, probs_V.log().float())
        expected[noise] = probs_V.tolist()
    assert expected["gumbel"] != expected["antithetic"]


def test_log_likelihoods_are_those_of_a_slow_reference(family, roe, tokenizer):
    context = tokenizer.encode("what is")
    continuation = tokenizer.encode(" a cat")
    expected, _ = roe_reference.score(
        exact(family), context, continuation, N, roe.temperatures, SEED
    )
    assert roe.loglikelihood("what is", " a cat") == rounding.approx(expected, tokens=6)
    assert roe.loglikelihood("what is", [" a cat"]) == [pytest.approx(expected, abs=1e-3)]

    first, second = roe.loglikelihood(["what is", "hello"], [" a cat", " a cat"])
    assert first == rounding.approx(expected, tokens=6)
    assert first != second


def test_greedy_text_is_that_of_a_slow_reference(family, roe, tokenizer):
    context = tokenizer.encode("what is")
    expected, gap = roe_reference.generate(exact(family), context, N, roe.temperatures, 4, SEED)
    assert gap > 1e-4
    inputs = left_padded(tokenizer, ["what is", "a longer prompt"])
    ids = roe.model.generate(
        **inputs, custom_generate=roe, max_new_tokens=4, eos_token_id=None, pad_token_id=256
    )
    assert ids[0, inputs["input_ids"].shape[1] :].tolist() == expected


# Against the command


def cut(text: str, stop_strings: list[str]) -> str:
    """The text up to the first stop string."""
    return min((text.split(stop_string)[0] for stop_string in stop_strings), key=len)


def arguments_of(sample: dict[str, Any]) -> list[list[Any]]:
    """The arguments of each request of a stored sample."""
    return [list(arguments.values()) for arguments in sample["arguments"].values()]


def samples_below(output: Path, metric: str) -> list[dict[str, Any]]:
    samples = []
    for file in output.glob("runs/*/samples_*.jsonl"):
        for line in file.read_text().splitlines():
            sample = json.loads(line)
            if metric in sample:
                samples.append(sample)
    return samples


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
        capsys,
        "-m",
        "method=roe",
        f"model.path={folder}",
        "task=toy_choice,toy_math",
        "limit=3",
        "method.n=3",
        "method.temperature=0.6",
        "baseline=false",
        "seed=2",
        f"gen_kwargs={gen_kwargs}",
        f"output_dir={tmp_path}",
    )
    assert ended.code == 0, ended.err

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    roe = RoE(model, AutoTokenizer.from_pretrained(folder), n=3, temperature=0.6, seed=2)

    scored = samples_below(tmp_path, "acc")
    assert len(scored) == 3
    for sample in scored:
        requests = arguments_of(sample)
        contexts = [context for context, _ in requests]
        choices = [choice for _, choice in requests]
        stored = [float(response[0][0]) for response in sample["resps"]]
        assert len(stored) > 1
        assert roe.loglikelihood(contexts, choices) == rounding.approx(stored, tokens=12)

    generated = samples_below(tmp_path, "exact_match")
    assert len(generated) == 3
    for sample in generated:
        [(prompt, gen_settings)] = arguments_of(sample)
        stop_strings = gen_settings["until"]
        text = roe.generate(prompt, max_new_tokens=12, stop_strings=stop_strings, **options)
        assert cut(text, stop_strings) == sample["resps"][0][0]


# Forms of texts and token ids


def test_one_text_and_several(roe):
    text = roe.generate("hello", max_new_tokens=2)
    assert isinstance(text, str)
    assert roe.generate(["hello"], max_new_tokens=2) == [text]
    texts = roe.generate("hello", max_new_tokens=2, do_sample=True, num_return_sequences=3)
    assert len(texts) == 3


def test_one_score_and_several(roe):
    score = roe.loglikelihood("hello", " you")
    scores = roe.loglikelihood(["hello", "hello"], [" you", " you"])
    assert scores == pytest.approx([score, score], abs=1e-4)


def test_forms_of_token_ids(roe, tokenizer):
    ids = tokenizer.encode("hello")
    V = roe.model.config.vocab_size
    assert roe.next_token_logprobs(ids).shape == (V,)
    assert roe.next_token_logprobs([ids]).shape == (1, V)
    assert roe.next_token_logprobs(torch.tensor(ids)).shape == (V,)
    assert roe.next_token_logprobs(torch.tensor([ids])).shape == (1, V)
    assert roe.next_token_logprobs([torch.tensor(ids)]).shape == (1, V)


# The model


def test_facts_are_those_of_the_configuration(tokenizer):
    loaded = loaded_model(make_model("mixtral").bfloat16(), tokenizer)
    assert loaded.device.type == "cpu"
    assert loaded.facts.family == "mixtral"
    assert loaded.facts.dtype == "bfloat16"
    assert loaded.facts.experts == 6
    assert loaded.facts.top_k == 2
    assert loaded.facts.moe_layers == 4
    assert loaded.facts.routers is not None


def hooks_of(model: Any) -> list[list[int]]:
    return [list(module._forward_hooks) for module in model.modules()]


def test_the_model_is_left_as_it_was(olmoe, tokenizer):
    inputs = left_padded(tokenizer, PROMPTS)
    ids_before = olmoe.generate(**inputs, max_new_tokens=5, do_sample=False)
    hooks_before = hooks_of(olmoe)
    RoE(olmoe, tokenizer, n=4, temperature=2.0).generate(PROMPTS, max_new_tokens=5)
    ids_after = olmoe.generate(**inputs, max_new_tokens=5, do_sample=False)
    assert torch.equal(ids_after, ids_before)
    assert hooks_of(olmoe) == hooks_before


# The seed of a call

SAMPLED = {"max_new_tokens": 8, "do_sample": True}


def test_a_seed_of_a_call_is_that_of_another_object(model, tokenizer, roe):
    """Noise and samples, also where transformers calls it."""
    of_another_seed = RoE(model, tokenizer, n=N, temperature=TEMPERATURE, seed=6)
    expected = of_another_seed.generate("hello", **SAMPLED)
    assert roe.generate("hello", seed=6, **SAMPLED) == expected
    assert roe.generate("hello", **SAMPLED) != expected

    inputs = left_padded(tokenizer, ["hello"])
    ids = model.generate(**inputs, custom_generate=partial(roe, seed=6), **SAMPLED)
    [new_tokens] = new_tokens_of(ids, inputs)
    assert tokenizer.decode(new_tokens, skip_special_tokens=True) == expected


def test_after_a_call_with_a_seed_the_object_has_its_own_again(roe):
    sampled = roe.generate("hello", **SAMPLED)
    greedy = roe.generate("hello", max_new_tokens=8)
    roe.generate("hello", seed=6, **SAMPLED)
    assert roe.generate("hello", **SAMPLED) == sampled
    assert roe.generate("hello", max_new_tokens=8) == greedy


def test_decisions_of_a_call_with_a_seed_are_counted_once(model, tokenizer, roe):
    of_another_seed = RoE(model, tokenizer, n=N, temperature=TEMPERATURE, seed=6)
    of_another_seed.generate("hello", **SAMPLED)
    roe.generate("hello", **SAMPLED)
    decisions_before = roe.lm.cost["noisy_decisions"]
    roe.generate("hello", seed=6, **SAMPLED)
    decisions = roe.lm.cost["noisy_decisions"] - decisions_before
    assert decisions == of_another_seed.lm.cost["noisy_decisions"]


def test_each_seed_of_a_call_gives_another_text(roe, olmoe, tokenizer):
    base = RoE(olmoe, tokenizer, n=1)
    for object_ in (roe, base):
        texts = {object_.generate("hello", seed=seed, **SAMPLED) for seed in range(5)}
        assert len(texts) == 5
