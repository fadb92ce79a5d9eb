"""`EngineLM` answers what lm-eval's own `hf` model answers; the keys of its noise;
inputs that are too long.

Broken by: a second answer to a prompt that is given the noise of the first, a seed that sampling
does not read, or a truncated input without a warning.

The answer in a reply with reasoning. Broken by: reasoning that is taken as the answer,
a stop word that ends the reasoning, special tokens or another message in the answer, lm-eval's own
code for models without a KV cache.
"""

import copy
import logging
import random

import pytest
import torch
from lm_eval.models.huggingface import HFLM
from tokenizers.processors import TemplateProcessing

from moe_lab.engine import hf
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.hf import THINK_END
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.engine.scoring import Budget
from moe_lab.errors import ConfigError
from moe_lab.models.lm_eval_internals import answers_of_lm_eval, instance_of
from moe_lab.routing import GumbelTopK, document_key, gumbel
from tests.support.command import run_command
from tests.support.ensembles import answered, answers_of, text
from tests.support.harmony import (
    FINAL,
    OPEN,
    answer_with,
    harmony_model,
    harmony_tokenizer,
    reply,
    thought,
)
from tests.support.models import make_model, make_tokenizer, small_model
from tests.support.tiers import by_family


def requests_of(kind, arguments):
    return [instance_of(kind, args) for args in arguments]


def pairs(rng):
    """Questions with four choices each: an empty context, one with a trailing
    blank, one that is too long."""
    requests = []
    for _ in range(5):
        context = text(rng, rng.randrange(1, 20))
        requests += [(context, " " + text(rng, rng.randrange(1, 4))) for _ in range(4)]
    return [
        *requests,
        ("", text(rng, 3)),
        ("ends in a blank ", "word"),
        (text(rng, 200), text(rng, 3)),
    ]


@pytest.mark.parametrize(
    ("family", "batch_size"),
    [("olmoe", 3)]
    + [pytest.param("olmoe", size, marks=pytest.mark.slow) for size in ("auto", "auto:4", 1)]
    + [pytest.param(family, "auto", marks=pytest.mark.slow) for family in ("mixtral", "qwen2_moe")],
)
def test_answers_are_those_of_hf(family, tokenizer, batch_size):
    moe_model = make_model(family)
    rng = random.Random(0)
    hf = HFLM(pretrained=moe_model, tokenizer=tokenizer, batch_size=3)
    ours = EngineLM(moe_model, tokenizer, batch_size=batch_size)
    scored = requests_of("loglikelihood", pairs(rng))
    expected = hf.loglikelihood(scored, disable_tqdm=True)
    for our_answer, (value, greedy) in zip(ours.loglikelihood(scored), expected, strict=True):
        assert our_answer == (pytest.approx(value, abs=1e-4), greedy)
    rolled = requests_of("loglikelihood_rolling", [(text(rng, n),) for n in (1, 30, 300)])
    kind = "loglikelihood_rolling"
    rolling_of_hf = answers_of_lm_eval(kind, hf.loglikelihood_rolling(rolled))
    our_rolling = answers_of_lm_eval(kind, ours.loglikelihood_rolling(rolled))
    assert our_rolling == pytest.approx(rolling_of_hf, rel=1e-6, abs=1e-4)
    requests = []
    for i in range(8):
        beginning = "say " * 8 if i % 2 else ""
        options = {"until": ["e", " a"], "max_gen_toks": 12}
        if i % 3 == 0:
            options = {"until": ["zz"], "max_gen_toks": 9}
        requests.append((beginning + text(rng, rng.randrange(1, 30)), options))
    generated = requests_of("generate_until", requests)
    assert ours.generate_until(generated) == hf.generate_until(generated, disable_tqdm=True)


def test_answers_come_one_by_one_and_are_counted(olmoe, tokenizer):
    lm = EngineLM(olmoe, tokenizer)
    seen = {}
    lm.answer(
        "loglikelihood",
        [Request(("ab", "cd")), Request(("ab", "ce")), Request(("ab", "cd"))],
        seen.__setitem__,
    )
    assert sorted(seen) == [0, 1, 2]
    assert seen[0] == seen[2]
    assert seen[0] != seen[1]
    assert lm.cost["tokens_in"] == len("abc"), "a last token is only predicted"
    assert lm.cost["tokens_out"] == 0
    lm.answer(
        "generate_until", [Request(("abc", {"max_gen_toks": 5, "until": []}))], seen.__setitem__
    )
    assert lm.cost["tokens_out"] == 5
    assert lm.cost["tokens_in"] == 3 + len("abc") + 4, "the last of 5 tokens is not read"


def test_repeats_of_a_prompt_are_different_samples(olmoe, tokenizer):
    lm = EngineLM(olmoe, tokenizer)
    options = {"do_sample": True, "temperature": 1.5, "max_gen_toks": 16}
    (instance,) = requests_of("generate_until", [("abc", options)])
    first, second = lm.generate_until([instance, instance])
    assert first != second  # 16 tokens of 300: they agree with odds far below 1e-9
    assert lm.generate_until([instance, instance]) == [first, second]


@pytest.mark.parametrize("add_bos_token", [None, True, False])
def test_texts_that_are_tokenized_together_have_the_same_tokens(olmoe, add_bos_token, monkeypatch):
    """Also a context that ends in spaces or is empty, one that two requests share,
    and a text with the first token.

    The tokenizer puts that token before each text, except with add_bos_token=false.
    """
    monkeypatch.setattr(hf, "TOKENIZED", 4)
    tokenizer = make_tokenizer()
    first = (tokenizer.bos_token, tokenizer.bos_token_id)
    beginning = TemplateProcessing(single=f"{first[0]} $A", special_tokens=[first])
    tokenizer.backend_tokenizer.post_processor = beginning
    lm = EngineLM(olmoe, tokenizer, add_bos_token=add_bos_token)
    begin = tokenizer.decode(lm.prefix_token_id)
    texts = [
        ("one two ", "three"),
        ("one two ", "four"),
        ("", "five"),
        (f"{begin}six", " seven"),
        ("eight", " "),
    ]
    assert list(lm.encoder.pairs(texts)) == [lm.encode_pair(*text) for text in texts]
    with lm.tokenized(["nine ten"]):
        assert lm.tok_encode("nine ten", add_special_tokens=False)[0] != first[1]
        monkeypatch.setattr(
            tokenizer, "encode", lambda *args, **options: pytest.fail("tokenized again")
        )
        assert lm.tok_encode("nine ten")


def test_a_recurrent_model_is_run_by_hf(tokenizer):
    model = small_model("qwen3_next")
    lm = EngineLM(model, tokenizer)
    assert lm.engine is None
    hf = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=8)
    rng = random.Random(0)
    for kind, arguments in {
        "loglikelihood": pairs(rng)[:8],
        "loglikelihood_rolling": [(text(rng, 20),)],
        "generate_until": [("hello", {"until": ["e"], "max_gen_toks": 5})],
    }.items():
        requests = requests_of(kind, arguments)
        assert getattr(lm, kind)(requests) == getattr(hf, kind)(requests)
    assert lm.cost["tokens_in"] > 0


def test_log_probabilities_by_hf_are_float32(tokenizer):
    model = copy.deepcopy(small_model("qwen3_next")).bfloat16()
    requests = requests_of("loglikelihood", [("abcdefgh", f" {letter}bcd") for letter in "abcdefg"])
    values = [value for value, _ in EngineLM(model, tokenizer).loglikelihood(requests)]
    assert not any((value * 32).is_integer() for value in values)


def test_answers_too_long_for_the_model_are_refused(olmoe, tokenizer):
    lm = EngineLM(olmoe, tokenizer, max_length=20)
    with pytest.raises(ConfigError, match="max_length"):
        lm.loglikelihood(requests_of("loglikelihood", [("a", "b" * 30)]))
    with pytest.raises(ConfigError, match="max_gen_toks"):
        lm.generate_until(requests_of("generate_until", [("a", {"max_gen_toks": 20, "until": []})]))


def test_an_ensemble_on_flash_attention_is_refused_by_name(tokenizer):
    """It went one token at a time, through the engine of recurrent models."""
    model = make_model("olmoe")
    model.config._attn_implementation = "flash_attention_2"
    assert EngineLM(model, tokenizer).engine is None, "the base model runs in lm-eval's own code"
    with pytest.raises(ConfigError, match=r"flash_attention_2 .*set_attn_implementation\(.sdpa.\)"):
        EngineLM(model, tokenizer, ensemble=Ensemble(n=2, routing=GumbelTopK([0.5] * 4, seed=0)))


PROMPT = [3, 1, 4, 1, 5]
OPTIONS = {"do_sample": True, "top_k": 0}
"""Of the whole distribution."""


@pytest.mark.parametrize("seed", [0, 5])
def test_a_sampled_token_is_the_best_one_with_the_seeds_noise(olmoe, seed):
    steps = 6
    [sampled_text] = answers_of(olmoe, [PROMPT], Budget(4000), steps, options=OPTIONS, seed=seed)
    ids = list(PROMPT)
    for token in sampled_text:
        with torch.no_grad():
            log_probs_V = olmoe(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        noise_V = gumbel(seed, document_key(PROMPT), 0, -1, -1, [len(ids) - 1], len(log_probs_V))[0]
        assert token == int((log_probs_V + noise_V).argmax())
        ids.append(token)
    assert len(sampled_text) == steps


def test_the_lm_samples_with_its_seed_and_at_the_temperature(olmoe, tokenizer):
    sampled = {"do_sample": True, "max_gen_toks": 12, "until": []}
    hot = {"temperature": 1.5}
    cold = {"temperature": 1e-4}
    greedy = {"do_sample": False}
    answers = []
    for seed, options in enumerate((hot, hot, cold, greedy)):
        lm = EngineLM(olmoe, tokenizer, seed=seed, progress=False)
        answers += answered(lm, "generate_until", [("abc", sampled | options)])
    assert answers[0] != answers[1]
    assert answers[2] == answers[3]


SHORT = ("a", " b")
LONG = ("a" * 600, " b")


def warnings_of(caplog, lm, kind, requests):
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="moe_lab"):
        lm.answer(kind, [Request(arguments) for arguments in requests], lambda index, answer: None)
    return [record.getMessage() for record in caplog.records if record.name == "moe_lab"]


@pytest.mark.parametrize("own_code", [True, False], ids=["engine", "hf"])
def test_requests_that_lose_their_beginning_are_counted(olmoe, tokenizer, caplog, own_code):
    model = olmoe if own_code else small_model("qwen3_next")
    lm = EngineLM(model, tokenizer, max_length=100, progress=False)
    assert (lm.engine is not None) == own_code
    (warning,) = warnings_of(caplog, lm, "loglikelihood", [SHORT, LONG, LONG])
    assert warning.startswith(
        "2 of 3 requests are longer than the model's input of 100 tokens (max_length)"
    )
    exact = ("a" * 99, " b")  # the last token is not read
    assert warnings_of(caplog, lm, "loglikelihood", [SHORT, exact]) == []
    assert warnings_of(caplog, lm, "loglikelihood_rolling", [("a" * 600,)]) == []
    assert lm.cost["cut_prompts"] == 2
    options = {"until": [], "max_gen_toks": 2}
    if own_code:
        (warning,) = warnings_of(
            caplog, lm, "generate_until", [("a" * 98, options), ("a" * 99, options)]
        )
        assert warning.startswith("1 of 2 requests")


@pytest.mark.slow
def test_a_run_warns_once_and_notes_it_in_its_log(tmp_path, capsys, tiny_olmoe_dir):
    ended = run_command(
        capsys,
        "method=roe",
        "method.n=2",
        f"model.path={tiny_olmoe_dir}",
        "task=toy_choice",
        "limit=3",
        "max_length=20",
        "baseline=false",
        f"output_dir={tmp_path}",
    )
    assert ended.code == 0, ended.err
    warning = "requests are longer than the model's input of 20 tokens (max_length)"
    assert ended.err.count(warning) == 1
    [log] = tmp_path.glob("runs/*/run.log")
    assert log.read_text().count(warning) == 1


def answer(lm: EngineLM, **options: object) -> str:
    settings = {"until": ["Question:"], "max_gen_toks": 200, THINK_END: FINAL, **options}
    return answered(lm, "generate_until", [(f"2 + 2{OPEN}", settings)])[0]


@pytest.fixture(scope="module")
def lm() -> EngineLM:
    return EngineLM(harmony_model(), harmony_tokenizer(), progress=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (reply("2 + 2\n\nQuestion: is it 5?", " 4\n\nQuestion: and then?"), "4\n\n"),
        (
            f"{thought('so')}{OPEN}{FINAL}5{thought('no')}{OPEN}{FINAL}4<|return|>",
            "4",
        ),  # the last one counts
        (f"{FINAL}4<|end|>{OPEN}<|channel|>commentary<|message|>done<|return|>", "4"),
        (f"{thought('so')}{OPEN}{FINAL}<|return|>", ""),
    ],
)
def test_the_answer_is_the_text_of_the_final_channel(lm, monkeypatch, text, expected):
    answer_with(monkeypatch, text)
    assert answer(lm) == expected
    assert lm.cost.get("cut_reasoning", 0) == 0


@pytest.mark.parametrize(
    ("text", "end"),
    [
        (reply("the answer is 4", "4"), FINAL),
        (f"{thought('4')}<|return|>", FINAL),
        ("so it is 4</think>4<|return|>", "</think>"),
    ],
)
def test_a_reply_that_ends_in_the_reasoning_has_an_empty_answer(monkeypatch, caplog, text, end):
    lm = EngineLM(harmony_model(), harmony_tokenizer(), progress=False)
    answer_with(monkeypatch, text)
    with caplog.at_level(logging.WARNING, logger="moe_lab"):
        assert answer(lm, max_gen_toks=15, **{THINK_END: end}) == ""
    assert lm.cost["cut_reasoning"] == 1
    assert f"1 of 1 replies end before {end}, within 15 new tokens" in caplog.text


def test_without_think_end_token_stop_words_end_the_reply_and_special_tokens_are_dropped(
    lm, monkeypatch
):
    answer_with(monkeypatch, reply("2 + 2\n\nQuestion: is it 5?", "4"))
    request = (OPEN, {"until": ["Question:"], "max_gen_toks": 200})
    assert answered(lm, "generate_until", [request]) == ["analysis2 + 2\n\n"]


@pytest.mark.parametrize("family", by_family(["jamba", "qwen3_next"]))
def test_models_without_a_kv_cache_reason_in_our_engine(monkeypatch, family):
    lm = EngineLM(harmony_model(family), harmony_tokenizer(), progress=False)
    assert lm.engine is None
    answer_with(monkeypatch, reply("2 + 2", "4"))
    assert answer(lm) == "4"
