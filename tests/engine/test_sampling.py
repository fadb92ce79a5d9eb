"""Sampled answers, generation options and near ties; the engine as the decoding loop
of `model.generate`.

Broken by: answers of lm-eval's `hf` model that depend on their batch or order, a field
of transformers' GenerationConfig that is neither supported (`WORKS`) nor refused (`UNSUPPORTED`),
a bound of near ties that is not the dtype's, padding that is read, positions of padded prompts,
an argument of `model.generate` that is dropped in silence.
"""

import copy
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from lm_eval.models.huggingface import HFLM
from transformers import GenerationConfig

from moe_lab import RoE
from moe_lab.engine.custom_generate import _without_padding
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.engine.sampling import (
    NEAR,
    RETURNED,
    SET_BY_LM_EVAL,
    UNSUPPORTED,
    UNSUPPORTED_IN_TASKS,
    GenerationState,
    Sampler,
    near,
    unsupported,
)
from moe_lab.errors import ConfigError
from moe_lab.models.lm_eval_internals import instance_of
from tests.support.ensembles import answered
from tests.support.models import left_padded, make_model, make_tokenizer, small_model
from tests.support.tiers import by_family

OPTIONS = {"until": [], "max_gen_toks": 8, "do_sample": True, "temperature": 1.0}


def answers(prompts, repeat=0):
    lm = EngineLM(small_model("qwen3_next"), make_tokenizer(), batch_size=4, progress=False)
    assert lm.engine is None
    requests = [Request((prompt, OPTIONS), repeat) for prompt in prompts]
    return dict(zip(prompts, answered(lm, "generate_until", requests), strict=True))


def test_answers_do_not_depend_on_order_company_or_what_was_drawn_before():
    first = answers(["one prompt", "another one", "a third"])
    torch.rand(5)
    assert answers(["a third", "one prompt"]) == {
        key: first[key] for key in ("a third", "one prompt")
    }


def test_several_answers_to_a_prompt_differ():
    assert answers(["one prompt"]) != answers(["one prompt"], repeat=1)


PROMPTS = ["hello", "what is a cat and why", "abc" * 5]
SAMPLED = {"do_sample": True}
NO_EFFECT = {
    "assistant_confidence_threshold": 0.5,
    "assistant_ensemble_weight": 0.5,
    "assistant_lookbehind": 2,
    "bos_token_id": 3,
    "compile_config": None,
    "continuous_batching_config": None,
    "decoder_start_token_id": 3,
    "disable_compile": True,
    "diversity_penalty": 0.5,
    "early_stopping": False,
    "length_penalty": 0.5,
    "low_memory": True,
    "max_matching_ngram_size": 2,
    "num_assistant_tokens": 3,
    "num_assistant_tokens_schedule": "heuristic",
    "pad_token_id": 9,
    "prefill_chunk_size": 2,
    "remove_invalid_values": True,
    "renormalize_logits": True,
    "speculation_type": "dflash",
    "target_lookbehind": 2,
    "transformers_version": "5.0.0",
    "_from_model_config": False,
}
"""Greedy text does not depend on them, in transformers either: they are given together."""
WORKS = {
    "bad_words_ids": [[61], [42]],
    "begin_suppress_tokens": list(range(40, 200)),
    "encoder_no_repeat_ngram_size": 1,
    "encoder_repetition_penalty": 3.0,
    "eos_token_id": list(range(30, 120)),
    "exponential_decay_length_penalty": (1, 3.0),
    "forced_bos_token_id": 5,
    "forced_eos_token_id": 7,
    "max_length": 28,
    "max_new_tokens": 3,
    "max_time": 1e-9,
    "min_length": 30,
    "min_new_tokens": 8,
    "no_repeat_ngram_size": 1,
    "repetition_penalty": 3.0,
    "sequence_bias": {(61,): 9.0, (62,): -9.0},
    "suppress_tokens": list(range(150)),
    "use_cache": False,
}
"""Greedy text is that of transformers."""
SAMPLES = {
    "do_sample": True,
    "epsilon_cutoff": 0.02,
    "eta_cutoff": 0.5,
    "min_p": 0.5,
    "num_return_sequences": 2,
    "temperature": 0.2,
    "top_h": 0.1,
    "top_k": 2,
    "top_p": 0.2,
    "typical_p": 0.2,
    "watermarking_config": {"greenlist_ratio": 0.25, "bias": 9.0, "hashing_key": 15485863},
}
"""They change samples, which have noise of their own."""
STOPS = "stop_strings"


@pytest.fixture(scope="module")
def model():
    """Sequences of a batch end at different steps."""
    model = make_model("olmoe", num_hidden_layers=3)
    model.generation_config.eos_token_id = list(range(60, 75))
    return model


def test_every_field_is_known():
    known_fields = [*NO_EFFECT, *WORKS, *SAMPLES, STOPS, *UNSUPPORTED, *RETURNED]
    assert sorted(known_fields) == sorted(set(known_fields)) == sorted(GenerationConfig().to_dict())


def three_ways(roe, model, fields, options):
    """The answers by keywords, by a GenerationConfig and by the model's own."""
    yield roe.generate(PROMPTS, **options, **fields)
    yield roe.generate(PROMPTS, generation_config=GenerationConfig(**options, **fields))
    model_config = model.generation_config
    try:
        model.generation_config = copy.deepcopy(model_config)
        changed = GenerationConfig(**SAMPLED | fields)
        for name in {*fields} | ({"do_sample"} if "num_return_sequences" in fields else set()):
            setattr(model.generation_config, name, getattr(changed, name))
        yield roe.generate(PROMPTS, **options)
    finally:
        model.generation_config = model_config


@pytest.mark.parametrize("fields", [*({name: WORKS[name]} for name in WORKS), NO_EFFECT], ids=min)
def test_text_is_that_of_transformers(model, tokenizer, fields):
    options = {} if {"max_length", "max_new_tokens"} & {*fields} else {"max_new_tokens": 8}
    inputs = left_padded(tokenizer, PROMPTS)
    plain = model.generate(**inputs, do_sample=False, **options, **fields)
    width = inputs["input_ids"].shape[1]
    expected = tokenizer.batch_decode(plain[:, width:], skip_special_tokens=True)
    roe = RoE(model, tokenizer, n=1)
    texts = list(three_ways(roe, model, fields, options))
    assert texts == [expected] * 3
    ids = model.generate(**inputs, custom_generate=roe, do_sample=False, **options, **fields)
    assert torch.equal(ids, plain)


@pytest.fixture(scope="module")
def samples(model, tokenizer):
    """(RoE, its answers without further options, greedy and sampled)"""
    roe = RoE(model, tokenizer, n=2, temperature=0.7)
    greedy = roe.generate(PROMPTS, max_new_tokens=4, do_sample=False)
    sampled = roe.generate(PROMPTS, max_new_tokens=4, do_sample=True)
    return roe, greedy, sampled


@pytest.mark.parametrize(("field", "value"), SAMPLES.items())
def test_a_sample_is_the_same_by_keyword_and_by_configuration(model, samples, field, value):
    roe, greedy, sampled = samples
    options = {"max_new_tokens": 4}
    if field == "do_sample":
        without_field = greedy
    else:
        options |= SAMPLED
        without_field = sampled
    texts = list(three_ways(roe, model, {field: value}, options))
    assert texts[0] == texts[1] == texts[2]
    assert texts[0] != without_field


def test_stop_strings_use_the_tokenizer_of_roe(model, tokenizer):
    roe = RoE(model, tokenizer, n=2)
    options = {"max_new_tokens": 12, "eos_token_id": 256, "do_sample": True}
    whole = roe.generate("hello", **options)
    stop = next(character for character in whole[2:] if character.isascii())
    for text in three_ways(roe, model, {STOPS: [stop]}, options):
        assert text[0] == whole[: whole.index(stop) + 1]


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_refused_is_named(model, tokenizer, name):
    value = {
        "cache_implementation": "static",
        "cache_config": {"bits": 4},
        "dola_layers": "low",
    }.get(name, 2)
    value = [[1]] if name in ("force_words_ids", "constraints") else value
    roe = RoE(model, tokenizer, n=2)
    config = GenerationConfig()
    setattr(config, name, value)
    assert name in unsupported(config)
    for options in ({name: value}, {"generation_config": config}):
        with pytest.raises(ConfigError, match=f"{name}=.* not supported.*Leave it out"):
            roe.generate("hello", **options)
    assert unsupported(GenerationConfig(num_beams=1, guidance_scale=1.0)) is None


def by_hf(model, tokenizer, options):
    """The answers of lm-eval's own model to each prompt alone."""
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1)
    requests = [instance_of("generate_until", (prompt, options)) for prompt in PROMPTS]
    return lm.generate_until(requests, disable_tqdm=True)


@contextmanager
def own_settings(model, fields):
    """Inside the context the model has these fields as of its generation_config.json."""
    before = model.generation_config
    model.generation_config = copy.deepcopy(before)
    for name, value in fields.items():
        setattr(model.generation_config, name, value)
    try:
        yield
    finally:
        model.generation_config = before


REFUSED_IN_TASKS = {*UNSUPPORTED_IN_TASKS, *SET_BY_LM_EVAL}
IN_TASKS = [{name: value} for name, value in WORKS.items() if name not in REFUSED_IN_TASKS]
IN_TASKS.append({name: value for name, value in NO_EFFECT.items() if name not in REFUSED_IN_TASKS})
IN_TASKS += [
    {"min_new_tokens": 4, "min_length": 2, "eos_token_id": list(range(120))},
    {"forced_eos_token_id": 7, "max_length": 28},
]


@pytest.mark.parametrize("fields", IN_TASKS, ids=min)
def test_answers_to_tasks_are_those_of_lm_eval(model, tokenizer, fields):
    """Prompts of unequal lengths in a batch, by every engine.

    Sampling settings come from a task and from the model.
    """
    options = {"until": [], "max_gen_toks": 8}
    recurrent = small_model("qwen3_next")
    base = Ensemble()
    roe = RoE(model, tokenizer, n=1).lm.ensemble
    for answering, ensemble in ((model, base), (model, roe), (recurrent, base)):
        lm = EngineLM(answering, tokenizer, ensemble=ensemble, batch_size=3, progress=False)
        expected = by_hf(answering, tokenizer, options | fields)
        requests = [(prompt, options | fields) for prompt in PROMPTS]
        assert answered(lm, "generate_until", requests) == expected
        of_file = {name: value for name, value in fields.items() if name != "max_length"}
        with own_settings(answering, of_file):
            expected = by_hf(answering, tokenizer, options)
            assert (
                answered(lm, "generate_until", [(prompt, options) for prompt in PROMPTS])
                == expected
            )


@pytest.mark.parametrize("name", sorted(REFUSED_IN_TASKS))
def test_what_a_task_cannot_set_is_named(model, tokenizer, name):
    value = {"use_cache": False, "max_time": 5.0, "cache_implementation": "static"}.get(name, 2)
    options = {"until": [], "max_gen_toks": 2}
    for answering in (model, small_model("qwen3_next")):
        lm = EngineLM(answering, tokenizer, progress=False)
        with pytest.raises(ConfigError, match=f"{name}=.*Leave it out of gen_kwargs"):
            answered(lm, "generate_until", [("hello", options | {name: value})])
        if name not in SET_BY_LM_EVAL:
            with (
                own_settings(answering, {name: value}),
                pytest.raises(ConfigError, match=f"{name}=.*generation_config.json: remove it"),
            ):
                answered(lm, "generate_until", [("hello", options)])


def test_stop_strings_of_a_model_end_the_answers_to_tasks(model, tokenizer):
    """lm-eval's own model has no tokenizer for them, and raises."""
    options = {"until": [], "max_gen_toks": 8}
    for answering in (model, small_model("qwen3_next")):
        lm = EngineLM(answering, tokenizer, progress=False)
        [whole] = answered(lm, "generate_until", [("hello", options)])
        stop = next(character for character in whole[1:] if character.isascii())
        expected = whole[: whole.index(stop) + 1]
        assert answered(lm, "generate_until", [("hello", options | {STOPS: [stop]})]) == [expected]
        with own_settings(answering, {STOPS: stop}):
            assert answered(lm, "generate_until", [("hello", options)]) == [expected]


def test_a_prompt_longer_than_max_length_is_named(model, tokenizer):
    lm = EngineLM(model, tokenizer, progress=False)
    with pytest.raises(
        ConfigError, match="max_length=5 in gen_kwargs counts the prompt, and one has 21"
    ):
        answered(lm, "generate_until", [(PROMPTS[1], {"until": [], "max_length": 5})])


def test_an_assistant_is_not_used(model, tokenizer):
    roe = RoE(model, tokenizer, n=2)
    assistant = make_model("olmoe", seed=1)
    ids = {"inputs": torch.tensor([[1, 2]]), "custom_generate": roe, "max_new_tokens": 3}
    assert torch.equal(model.generate(**ids), model.generate(**ids, assistant_model=assistant))


def test_processors_and_prefixes_see_the_rows_of_the_batch(model, tokenizer):
    inputs = left_padded(tokenizer, PROMPTS)
    seen = set()

    def allowed(row, ids):
        seen.add(row)
        return list(range(row * 40, row * 40 + 40))

    options = {"max_new_tokens": 6, "prefix_allowed_tokens_fn": allowed, "eos_token_id": [5, 50]}
    generated = model.generate(**inputs, custom_generate=RoE(model, tokenizer, n=1), **options)
    assert torch.equal(generated, model.generate(**inputs, **options))
    assert seen == {0, 1, 2}


def stub(dtype: torch.dtype):
    """What a `Sampler` reads of a model."""
    return SimpleNamespace(
        dtype=dtype,
        device=torch.device("cpu"),
        _prepare_special_tokens=lambda *args, **keys: None,
        _get_logits_processor=lambda *args, **keys: [],
    )


SCORES = torch.tensor([[12.125, 12.0625, -4.0, 0.0], [12.125, 11.0, -4.0, 0.0]])
"""A runner-up one bfloat16 step away, and one far away."""


@pytest.mark.parametrize(
    "dtype, ties", [(torch.bfloat16, 1), (torch.float16, 0), (torch.float32, 0)]
)
def test_ties_are_judged_at_the_dtypes_rounding(dtype, ties):
    decoder = Sampler(stub(dtype), GenerationConfig(do_sample=False), 0)
    states = [GenerationState(index, [1], noise_key=0) for index in range(2)]
    assert decoder(SCORES, states) == [0, 0]
    assert decoder.near_ties == ties


def test_the_bound_is_the_same_for_logits_and_log_probabilities_and_without_excluded_tokens():
    epsilon = torch.finfo(torch.bfloat16).eps
    bound = near(SCORES, epsilon)
    assert torch.allclose(bound, torch.full((2,), epsilon * 16.125))
    assert torch.allclose(near(SCORES.log_softmax(dim=-1), epsilon), bound, rtol=1e-5)
    excluded = torch.cat([SCORES, torch.full((2, 1), -torch.inf)], dim=-1)
    assert torch.equal(near(excluded, epsilon), bound)


def test_in_float32_the_bound_is_what_passes_of_other_shapes_differ_by():
    assert near(SCORES, torch.finfo(torch.float32).eps).tolist() == pytest.approx([NEAR, NEAR])


def test_sampled_tokens_have_the_probabilities_of_the_model(olmoe, tokenizer):
    """4,000 answers of one token: the share of each of the ten likeliest tokens is within five
    standard errors (odds below 1e-5)."""
    draws = 4000
    ids = tokenizer.encode("hello")
    sampled = olmoe.generate(
        torch.tensor([ids]),
        custom_generate=RoE(olmoe, tokenizer, n=1),
        do_sample=True,
        top_k=0,
        max_new_tokens=1,
        num_return_sequences=draws,
    )[:, -1]
    with torch.no_grad():
        probs = olmoe(torch.tensor([ids])).logits[0, -1].softmax(-1)
    for token in probs.topk(10).indices.tolist():
        p = float(probs[token])
        assert float((sampled == token).float().mean()) == pytest.approx(
            p, abs=5 * (p / draws) ** 0.5
        )


def test_what_is_not_supported_is_refused(olmoe, tokenizer):
    unsupported = {
        "num_beams": 2,
        "prompt_lookup_num_tokens": 2,
        "guidance_scale": 2,
        "output_attentions": True,
    }
    calls = []
    for key, value in unsupported.items():
        calls.append((key, {key: value, "return_dict_in_generate": True}))
    # there is no place for scores in a tensor of token ids
    calls.append(("output_scores", {"output_scores": True, "return_dict_in_generate": False}))

    roe = RoE(olmoe, tokenizer, n=2)
    for key, options in calls:
        with pytest.raises(ValueError, match=key):
            olmoe.generate(torch.tensor([[1, 2]]), custom_generate=roe, **options)


def test_a_streamer_takes_one_sequence(olmoe, tokenizer):
    put = []
    streamer = SimpleNamespace(
        put=lambda ids: put.extend(ids.flatten()), end=lambda: put.append("end")
    )
    options = {
        "custom_generate": partial(RoE(olmoe, tokenizer, n=2), streamer=streamer),
        "max_new_tokens": 3,
    }
    [ids] = olmoe.generate(torch.tensor([[1, 2]]), streamer=streamer, **options)
    assert put == [*ids.tolist(), "end"]
    with pytest.raises(ValueError, match="A streamer takes one sequence, and 2 are"):
        olmoe.generate(torch.tensor([[1, 2], [3, 4]]), streamer=streamer, **options)


@pytest.mark.parametrize("family", by_family(["olmoe", "gpt_oss", "qwen3_next"]))
def test_returned_scores_are_those_of_transformers(family, tokenizer):
    """Of one sample, before and after the logits processors.

    Some sequences end at different steps.
    """
    model = small_model(family)
    inputs = left_padded(tokenizer, PROMPTS)
    options = {
        "max_new_tokens": 8,
        "do_sample": False,
        "repetition_penalty": 1.3,
        "output_scores": True,
    }
    options |= {"return_dict_in_generate": True, "output_logits": True}
    free = model.generate(**inputs, **options)
    width = inputs["input_ids"].shape[1]
    options["eos_token_id"] = int(free.sequences[0, width + 2])  # ends the first sequence early
    plain = model.generate(**inputs, **options)
    generated = model.generate(**inputs, custom_generate=RoE(model, tokenizer, n=1), **options)
    assert torch.equal(generated.sequences, plain.sequences)
    assert len(generated.scores) == len(plain.scores)
    ended = [
        row[width:].tolist().index(options["eos_token_id"])
        if options["eos_token_id"] in row[width:]
        else 99
        for row in plain.sequences
    ]
    for field in ("scores", "logits"):
        for step, (roe_values, plain_values) in enumerate(
            zip(generated[field], plain[field], strict=True)
        ):
            open_ = [row for row, last in enumerate(ended) if step <= last]
            roe_scores = roe_values[open_].log_softmax(-1)
            expected_scores = plain_values[open_].log_softmax(-1)
            torch.testing.assert_close(roe_scores, expected_scores, atol=2e-4, rtol=1e-4)
    steps = model.compute_transition_scores(
        generated.sequences, generated.scores, normalize_logits=True
    )
    assert (steps[0, ended[0] + 1 :] == 0).all()
    assert (steps[0, : ended[0] + 1] < 0).all()


def test_returned_scores_of_an_ensemble_add_up_to_its_log_likelihood(olmoe, tokenizer):
    roe = RoE(olmoe, tokenizer, n=4, temperature=1.0)
    # a text of these has the same tokens again
    letters = tokenizer.encode("abcdefghijklmnopqrstuvwxyz")
    options = {
        "max_new_tokens": 5,
        "suppress_tokens": [token for token in range(300) if token not in letters],
    }
    generated = roe.generate("hello", output_logits=True, return_dict_in_generate=True, **options)
    assert generated.scores is None
    assert generated.texts == [roe.generate("hello", **options)]
    steps = olmoe.compute_transition_scores(
        generated.sequences, generated.logits, normalize_logits=True
    )
    whole = roe.loglikelihood("hello", generated.texts[0])
    assert float(steps.sum()) == pytest.approx(whole, abs=1e-3)
    plain = RoE(olmoe, tokenizer, n=1).loglikelihood("hello", generated.texts[0])
    assert abs(whole - plain) > 1e-2, "the ensemble is not the base model"


@pytest.mark.parametrize("mask", [torch.ones(3), torch.ones(2, 2), torch.tensor([[1, 0, 1]] * 2)])
def test_a_mask_that_is_not_one_of_left_padding_is_refused(mask):
    ids = torch.tensor([[1, 2, 3], [3, 4, 5]])
    with pytest.raises(ValueError, match="on the left"):
        _without_padding(ids, {"attention_mask": mask})


def test_padding_on_the_right_and_other_models_are_refused(olmoe, tokenizer):
    roe = RoE(olmoe, tokenizer, n=2)
    ids = torch.tensor([[1, 2, 256], [3, 4, 5]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    with pytest.raises(ValueError, match="on the left"):
        olmoe.generate(ids, attention_mask=mask, custom_generate=roe, max_new_tokens=2)
    free = make_model("olmoe", eos_token_id=None, pad_token_id=None)
    with pytest.raises(ValueError, match="another model"):
        free.generate(ids, custom_generate=roe, max_new_tokens=2)
    options = {"custom_generate": RoE(free, tokenizer, n=2), "max_new_tokens": 2}
    with pytest.raises(ValueError, match="different lengths need pad_token_id"):
        free.generate(ids, stopping_criteria=[lambda ids, *_, **__: ids[:, 0] == 1], **options)
    cache = olmoe(ids[:, :1]).cache
    with pytest.raises(ValueError, match="give no cache that holds"):
        olmoe.generate(ids, cache=cache, custom_generate=roe, max_new_tokens=2)
