"""A wrong call from Python is one sentence with the argument, its value and the remedy.

Broken by: a bare traceback of torch or transformers, a wrong value that is accepted.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

import moe_lab
from moe_lab import C3PO, RoE, expert_metrics, freeze, override, record, replay
from moe_lab.errors import MoeLabError
from moe_lab.routing.record import Record
from tests.support.models import make_model

PAIRS = [("two and two", " four"), ("one and one are", " two"), ("a cat is", " an animal")]
KEYS = {"k": 2, "layers": "last2", "steps": 1, "core_experts": 4}
IDS = torch.tensor([[3, 1, 4]])
MESSAGES = [{"role": "user", "content": "hello"}]


def hooks_of(m):
    return [list(each._forward_hooks) + list(each._forward_pre_hooks) for each in m.modules()]


def roe(m, t, **keys):
    return RoE(m, t, **{"n": 2} | keys)


def c3po(m, t, references=PAIRS, **keys):
    return C3PO(m, t, references, **KEYS | keys)


def inside(context, m):
    with context, torch.no_grad():
        m(IDS)


def returning(m, value):
    inside(override(m, lambda router, routing: value), m)


def metrics(m, texts, t):
    return expert_metrics(m, texts, t)


# name of the argument or value that the message has -> the call with a model and a tokenizer
WRONG = {
    # RoE
    "streamer=3": lambda m, t: roe(m, t).generate("a", streamer=3),
    "surrogate pair": lambda m, t: roe(m, t).generate("\ud800"),
    "give a function": lambda m, t: inside(override(m, lambda routing: None), m),
    "NaN or infinite": lambda m, t: inside(
        override(m, lambda router, routing: routing._replace(weights_TK=routing.weights_TK / 0)), m
    ),
    "n=True": lambda m, t: roe(m, t, n=True),
    "n=2.5": lambda m, t: roe(m, t, n=2.5),
    "n=0": lambda m, t: roe(m, t, n=0),
    "n=null": lambda m, t: roe(m, t, n=None),
    "n=8": lambda m, t: roe(m, t, n="8"),
    "seed=-1": lambda m, t: roe(m, t, seed=-1),
    "seed=1.5": lambda m, t: roe(m, t, seed=1.5),
    "seed=True": lambda m, t: roe(m, t, seed=True),
    "seed=9223372036854775808": lambda m, t: roe(m, t, seed=2**63),
    "temperature=-1": lambda m, t: roe(m, t, temperature=-1),
    "temperature=nan": lambda m, t: roe(m, t, temperature=float("nan")),
    "temperature=True": lambda m, t: roe(m, t, temperature=True),
    "temperature=nowhere.yaml": lambda m, t: roe(m, t, temperature=Path("nowhere.yaml")),
    "temperature=null": lambda m, t: roe(m, t, temperature=None),
    "5 entries": lambda m, t: roe(m, t, temperature=(0.1,) * 5),
    r"temperature\[1\]=a": lambda m, t: roe(m, t, temperature=[0.1, "a", 0.1, 0.1]),
    "temperature.*tensor": lambda m, t: roe(m, t, temperature=torch.ones(4)),
    "skip_layers=-1": lambda m, t: roe(m, t, skip_layers=-1),
    "skip_layers=2": lambda m, t: roe(m, t, skip_layers=2),
    "cache=cleen": lambda m, t: roe(m, t, cache="cleen"),
    "cache=1|cache=True": lambda m, t: roe(m, t, cache=True),
    "include_clean=1": lambda m, t: roe(m, t, include_clean=1),
    "noise=gumbl": lambda m, t: roe(m, t, noise="gumbl"),
    "model='my/model'": lambda m, t: roe("my/model", t),
    "model=None": lambda m, t: roe(None, t),
    "OlmoeModel": lambda m, t: roe(m.model, t),
    "no model of transformers": lambda m, t: roe(torch.nn.Linear(2, 2), t),
    "No router": lambda m, t: roe(make_model("llama"), t),
    "training mode": lambda m, t: roe(make_model("olmoe").train(), t),
    "tokenizer='my/model'": lambda m, t: roe(m, "my/model"),
    "tokenizer=None": lambda m, t: roe(m, None),
    # generate
    "text=tensor": lambda m, t: roe(m, t).generate(IDS),
    "chat messages": lambda m, t: roe(m, t).generate(MESSAGES),
    "a chat template, and the tokenizer": lambda m, t: roe(m, t).generate([MESSAGES, MESSAGES]),
    r"text=.*\{.*give a text": lambda m, t: roe(m, t).generate([MESSAGES, "a"]),
    "seed=2.5": lambda m, t: roe(m, t).generate("a", seed=2.5),
    "seed=-3": lambda m, t: roe(m, t).generate("a", seed=-3),
    "weights='modle'": lambda m, t: inside(replay(m, Record(), weights="modle"), m),
    r"text=\[\]": lambda m, t: roe(m, t).generate([]),
    r"text=\[\['a'\]\]": lambda m, t: roe(m, t).generate([["a"]]),
    "text=None": lambda m, t: roe(m, t).generate(None),
    "text=3": lambda m, t: roe(m, t).generate(3),
    "text={": lambda m, t: roe(m, t).generate(dict(t("a"))),
    "text=b'a'": lambda m, t: roe(m, t).generate(b"a"),
    "max_tokens.*max_new_tokens": lambda m, t: roe(m, t).generate("a", max_tokens=3),
    "max_new_tokens=2.5": lambda m, t: roe(m, t).generate("a", max_new_tokens=2.5),
    "max_new_tokens=many": lambda m, t: roe(m, t).generate("a", max_new_tokens="many"),
    "max_new_tokens.*-1": lambda m, t: roe(m, t).generate("a", max_new_tokens=-1),
    "num_return_sequences.*0": lambda m, t: roe(m, t).generate("a", num_return_sequences=0, do_sample=True),
    "num_return_sequences.*2": lambda m, t: roe(m, t).generate("a", num_return_sequences=2, do_sample=False),
    "temperature=warm": lambda m, t: roe(m, t).generate("a", do_sample=True, temperature="warm"),
    "temperature.*0": lambda m, t: roe(m, t).generate("a", do_sample=True, temperature=0.0),
    "do_sample=yes": lambda m, t: roe(m, t).generate("a", do_sample="yes"),
    "stop_strings=3": lambda m, t: roe(m, t).generate("a", stop_strings=3),
    r"stop_strings=\[\]|stop_strings.*empty": lambda m, t: roe(m, t).generate("a", stop_strings=[""]),
    "generation_config=": lambda m, t: roe(m, t).generate("a", generation_config={"max_new_tokens": 2}),
    "tokenizer=": lambda m, t: roe(m, t).generate("a", tokenizer=t),
    "num_beams=2": lambda m, t: roe(m, t).generate("a", generation_config=GenerationConfig(num_beams=2)),
    # next_token_logprobs
    "ids='two'": lambda m, t: roe(m, t).next_token_logprobs("two"),
    r"ids=\[\]": lambda m, t: roe(m, t).next_token_logprobs([]),
    r"ids=\[.*token ids": lambda m, t: roe(m, t).next_token_logprobs([[]]),
    r"ids=\[0.5\]": lambda m, t: roe(m, t).next_token_logprobs([0.5]),
    r"ids=\[9999\].*300": lambda m, t: roe(m, t).next_token_logprobs([9999]),
    r"ids=\[-1\].*300": lambda m, t: roe(m, t).next_token_logprobs([-1]),
    r"ids=\[\[\[3": lambda m, t: roe(m, t).next_token_logprobs(IDS[None]),
    r"ids=\[3\.0": lambda m, t: roe(m, t).next_token_logprobs(IDS.float()),
    "1 to 512 token ids": lambda m, t: roe(m, t).next_token_logprobs([1] * 513),
    "ids=3": lambda m, t: roe(m, t).next_token_logprobs(3),
    # loglikelihood
    r"continuation=\['b', ''\]|continuation=''": lambda m, t: roe(m, t).loglikelihood("a", ""),
    "2 contexts and 1": lambda m, t: roe(m, t).loglikelihood(["a", "b"], ["c"]),
    "continuation=4": lambda m, t: roe(m, t).loglikelihood("a", 4),
    r"continuation=\[\]": lambda m, t: roe(m, t).loglikelihood("a", []),
    "context=tensor": lambda m, t: roe(m, t).loglikelihood(IDS, "a"),
    "600 tokens": lambda m, t: roe(m, t).loglikelihood("a", "b" * 600),
    # C3PO
    "core_experts=99.*8 experts": lambda m, t: c3po(m, t, core_experts=99),
    "core_experts=0": lambda m, t: c3po(m, t, core_experts=0),
    "k=2.5": lambda m, t: c3po(m, t, k=2.5),
    "steps=-1": lambda m, t: c3po(m, t, steps=-1),
    "seed='a'|seed=a": lambda m, t: c3po(m, t, seed="a"),
    "layers=5": lambda m, t: c3po(m, t, layers=5),
    "references=nowhere": lambda m, t: c3po(m, t, "nowhere"),
    "references=None": lambda m, t: c3po(m, t, None),
    r"references=\[\]": lambda m, t: c3po(m, t, []),
    "give pairs": lambda m, t: c3po(m, t, ["2 + 2 =", " 4"]),
    "give pairs of": lambda m, t: c3po(m, t, [("a", 4), ("b", 5)]),
    "no answer empty": lambda m, t: c3po(m, t, [("a", ""), ("b", " c")]),
    # record, replay, override
    "model='record": lambda m, t: inside(record("record"), m),
    r"record\(model\)|no model": lambda m, t: inside(record(None), m),
    "record=|replay": lambda m, t: inside(replay(m, "routes"), m),
    "0 MoE layers": lambda m, t: inside(replay(m, Record()), m),
    r"override\(model, policy\)='best'": lambda m, t: inside(override(m, "best"), m),
    "model='m'": lambda m, t: inside(override("m", print), m),
    "returned a Tensor": lambda m, t: returning(m, torch.ones(3)),
    "returned a tuple": lambda m, t: returning(m, (torch.ones(3), torch.ones(3))),
    "returned a str": lambda m, t: returning(m, "second"),
    "returned a bool": lambda m, t: returning(m, True),
    "returned a list": lambda m, t: returning(m, [1, 2, 3]),
    # freeze
    r"\['router'\]": lambda m, t: inside(freeze(m, ["router"]), m),
    "'gate'.*router": lambda m, t: inside(freeze(m, "gate"), m),
    "no group": lambda m, t: inside(freeze(m), m),
    "model='model'": lambda m, t: inside(freeze("model", "router"), m),
    # expert_metrics
    "texts='hello'": lambda m, t: metrics(m, "hello", t),
    "texts=.*5": lambda m, t: metrics(m, [5, 6], t),
    r"texts=\[\[1, 2\], \[3, 4\]\]|texts=.*\[": lambda m, t: metrics(m, [[[1, 2], [3, 4]]], t),
    "999.*below": lambda m, t: metrics(m, [[1, 999]], t),
    "texts=None": lambda m, t: metrics(m, None, t),
    "model='texts'": lambda m, t: metrics("texts", ["hello"], t),
    "tokenizer='t'": lambda m, t: metrics(m, ["hello"], "t"),
    # lm
    "Unknown method 'rou'": lambda m, t: moe_lab.lm(m, t, "rou"),
    "method=3": lambda m, t: moe_lab.lm(m, t, 3),
    "batch_size=0": lambda m, t: moe_lab.lm(m, t, batch_size=0),
    "batch_size=2.5": lambda m, t: moe_lab.lm(m, t, batch_size=2.5),
    "batch_size=all": lambda m, t: moe_lab.lm(m, t, batch_size="all"),
    "max_length=0": lambda m, t: moe_lab.lm(m, t, max_length=0),
    "max_batch_size=many": lambda m, t: moe_lab.lm(m, t, max_batch_size="many"),
    "method.m": lambda m, t: moe_lab.lm(m, t, "roe", m=3),
    "seed=None|seed=null": lambda m, t: moe_lab.lm(m, t, seed=None),
    "model=12": lambda m, t: moe_lab.lm(12, t),
    # run
    "method=roe.*list": lambda m, t: moe_lab.run("method=roe"),
    r"overrides\)=None": lambda m, t: moe_lab.run(None),
    r"\[1\]": lambda m, t: moe_lab.run([1]),
    "overrides.*{": lambda m, t: moe_lab.run({"method": "roe"}),
    # plan, report, compare
    r"moe_lab.plan\(overrides\)='method=roe'": lambda m, t: moe_lab.plan("method=roe"),
    "plans runs": lambda m, t: moe_lab.plan(["mode=prefetch"]),
    r"moe_lab.report\(overrides\)='method=roe'": lambda m, t: moe_lab.report("method=roe"),
    "names no run": lambda m, t: moe_lab.report([]),
    "give a second evaluation": lambda m, t: moe_lab.compare("a"),
    "give paths": lambda m, t: moe_lab.compare("a", 3),
    "a=nowhere: there is no such": lambda m, t: moe_lab.compare("nowhere", "elsewhere"),
}


@pytest.mark.parametrize("says", WRONG)
def test_a_wrong_call_is_one_message(olmoe, tokenizer, says):
    before = hooks_of(olmoe)
    with pytest.raises(MoeLabError, match=says) as caught:
        WRONG[says](olmoe, tokenizer)
    assert len(str(caught.value).splitlines()) <= 3
    assert hooks_of(olmoe) == before


def test_there_are_many_wrong_calls():
    assert len(WRONG) > 100
