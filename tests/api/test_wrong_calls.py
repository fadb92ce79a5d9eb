"""A wrong call from Python is one sentence with the argument, its value and the remedy.

Broken by: a bare traceback of torch or transformers, a wrong value that is accepted.
"""

from functools import partial
from pathlib import Path
from traceback import format_exception

import pytest
import torch
from transformers import GenerationConfig

import moe_lab
from moe_lab import C3PO, RoE, expert_metrics, freeze, override, record
from moe_lab.errors import MoeLabError
from tests.support.models import make_model

PAIRS = [("two and two", " four"), ("one and one are", " two"), ("a cat is", " an animal")]
KEYS = {"k": 2, "layers": "last2", "steps": 1, "core_experts": 4}
IDS = torch.tensor([[3, 1, 4]])
MESSAGES = [{"role": "user", "content": "hello"}]


def hooks_of(m):
    return [list(module._forward_hooks) + list(module._forward_pre_hooks) for module in m.modules()]


def roe(m, t, **keys):
    return RoE(m, t, **{"n": 2} | keys)


def c3po(m, t, references=PAIRS, **keys):
    return C3PO(m, t, references, **KEYS | keys)


def inside(context, m):
    with context, torch.no_grad():
        m(IDS)


def returning(m, value):
    inside(override(m, lambda router, routing: value), m)


def deciding(m, change):
    """A pass under a policy that returns `change` of each decision."""
    inside(override(m, lambda router, routing: change(routing)), m)


# name of the argument or value that the message has -> the call with a model and a tokenizer
WRONG = {
    # RoE
    "infinite": lambda m, t: deciding(
        m, lambda r: r._replace(weights_TK=r.weights_TK.double() * 1e300)
    ),
    "weights_TK are NaN": lambda m, t: deciding(
        m, lambda r: r._replace(weights_TK=r.weights_TK * torch.nan)
    ),
    "must have the shape": lambda m, t: deciding(
        m, lambda r: r._replace(index_TK=r.index_TK[:, :1])
    ),
    "must be int64": lambda m, t: deciding(m, lambda r: r._replace(index_TK=r.index_TK.int())),
    "must be below 8": lambda m, t: deciding(m, lambda r: r._replace(index_TK=r.index_TK + 7)),
    "n=0": lambda m, t: roe(m, t, n=0),
    "seed=-1": lambda m, t: roe(m, t, seed=-1),
    f"seed={2**63}": lambda m, t: roe(m, t, seed=2**63),
    f"seed={2**32}": lambda m, t: roe(m, t).generate("a", seed=2**32),
    f"seed={2**33}": lambda m, t: m.generate(IDS, custom_generate=partial(roe(m, t), seed=2**33)),
    f"seed={2**34}": lambda m, t: c3po(m, t, seed=2**34),
    "temperature=-1": lambda m, t: roe(m, t, temperature=-1),
    "temperature=nowhere.yaml": lambda m, t: roe(m, t, temperature=Path("nowhere.yaml")),
    "5 entries": lambda m, t: roe(m, t, temperature=[0.1] * 5),
    r"temperature\[1\]=a": lambda m, t: roe(m, t, temperature=[0.1, "a", 0.1, 0.1]),
    "temperature.*tensor": lambda m, t: roe(m, t, temperature=torch.ones(4)),
    "skip_layers=2": lambda m, t: roe(m, t, skip_layers=2),
    "cache=cleen": lambda m, t: roe(m, t, cache="cleen"),
    "include_clean=1": lambda m, t: roe(m, t, include_clean=1),
    "model='my/model'": lambda m, t: roe("my/model", t),
    "OlmoeModel": lambda m, t: roe(m.model, t),
    "no model of transformers": lambda m, t: roe(torch.nn.Linear(2, 2), t),
    "No router": lambda m, t: roe(make_model("llama"), t),
    "training mode": lambda m, t: roe(make_model("olmoe").train(), t),
    "tokenizer='my/model'": lambda m, t: roe(m, "my/model"),
    # generate
    r"text=.*\{.*give a text.* tokenizer.apply_chat_template": lambda m, t: roe(m, t).generate(
        MESSAGES
    ),
    r"text=\[\]": lambda m, t: roe(m, t).generate([]),
    "num_beams=2": lambda m, t: roe(m, t).generate(
        "a", generation_config=GenerationConfig(num_beams=2)
    ),
    # next_token_logprobs
    "ids='two'": lambda m, t: roe(m, t).next_token_logprobs("two"),
    r"ids=\[0.5\]": lambda m, t: roe(m, t).next_token_logprobs([0.5]),
    r"ids=\[9999\].*300": lambda m, t: roe(m, t).next_token_logprobs([9999]),
    r"ids=\[0, 1, 2, [\d, ]{40,50}\.\.\.: ": lambda m, t: roe(m, t).next_token_logprobs(
        list(range(299)) * 2
    ),
    # loglikelihood
    r"continuation=\['b', ''\]|continuation=''": lambda m, t: roe(m, t).loglikelihood("a", ""),
    "2 contexts and 1": lambda m, t: roe(m, t).loglikelihood(["a", "b"], ["c"]),
    r"continuation=\[\]": lambda m, t: roe(m, t).loglikelihood("a", []),
    "600 tokens": lambda m, t: roe(m, t).loglikelihood("a", "b" * 600),
    # C3PO
    "core_experts=99.*8 experts": lambda m, t: c3po(m, t, core_experts=99),
    "layers=5": lambda m, t: c3po(m, t, layers=5),
    r"references=\[\]": lambda m, t: c3po(m, t, []),
    "give pairs": lambda m, t: c3po(m, t, ["2 + 2 =", " 4"]),
    "no answer empty": lambda m, t: c3po(m, t, [("a", ""), ("b", " c")]),
    "3 references, and k=4": lambda m, t: c3po(m, t, k=4),
    "optimizer=oracle": lambda m, t: c3po(m, t, optimizer="oracle"),
    "reference=.* is a key of runs": lambda m, t: c3po(m, t, reference="toy_choice"),
    "Did you mean 'method.steps'": lambda m, t: c3po(m, t, stepps=3),
    "layers=last9.*4 MoE layers": lambda m, t: c3po(m, t, layers="last9"),
    "No router was found": lambda m, t: c3po(make_model("llama"), t),
    # record, override
    "model='record": lambda m, t: inside(record("record"), m),
    r"record\(model\)|no model": lambda m, t: inside(record(None), m),
    "returned a Tensor": lambda m, t: returning(m, torch.ones(3)),
    # freeze
    r"\['router'\]": lambda m, t: inside(freeze(m, ["router"]), m),
    "'gate'.*router": lambda m, t: inside(freeze(m, "gate"), m),
    "trains no such parameters": lambda m, t: inside(freeze(m, "shared_experts"), m),
    "No router was.*Llama": lambda m, t: inside(freeze(make_model("llama"), "router"), m),
    # expert_metrics
    "texts='hello'": lambda m, t: expert_metrics(m, "hello", t),
    r"texts=\[\[1, 2\], \[3, 4\]\]|texts=.*\[": lambda m, t: expert_metrics(
        m, [[[1, 2], [3, 4]]], t
    ),
    "999.*below": lambda m, t: expert_metrics(m, [[1, 999]], t),
    "needs the tokenizer": lambda m, t: expert_metrics(m, ["hello"], None),
    "2 to 512 token ids": lambda m, t: expert_metrics(m, ["a"], t),
    "texts=.*2 to 512": lambda m, t: expert_metrics(m, ["a" * 600], t),
    r"texts=\[\]": lambda m, t: expert_metrics(m, [], t),
    "model='texts'": lambda m, t: expert_metrics("texts", ["hello"], t),
    "tokenizer='t'": lambda m, t: expert_metrics(m, ["hello"], "t"),
    # lm
    "Unknown method 'rou'": lambda m, t: moe_lab.lm(m, t, "rou"),
    "batch_size=0": lambda m, t: moe_lab.lm(m, t, batch_size=0),
    "method.m": lambda m, t: moe_lab.lm(m, t, "roe", m=3),
    "model=12": lambda m, t: moe_lab.lm(12, t),
    "method.temperature.*1 entries": lambda m, t: moe_lab.lm(m, t, "roe", temperature=[0.1]),
    r"reads documents.*moe_lab\.run": lambda m, t: moe_lab.lm(m, t, "icl"),
    "trains a model": lambda m, t: moe_lab.lm(m, t, "finetune-freeze"),
    # run
    "Did you mean 'roe'": lambda m, t: moe_lab.run(["method=rou"]),
    "runs, and mode=plan has none": lambda m, t: moe_lab.run(["mode=plan"]),
    "--cfg job only prints": lambda m, t: moe_lab.run(["--cfg", "job"]),
    "brings its own grid": lambda m, t: moe_lab.run(
        ["-m", "experiment=roe/figure3", "method.n=2,3"]
    ),
    "method=roe.*list": lambda m, t: moe_lab.run("method=roe"),
    # plan, report, compare
    r"moe_lab.plan\(overrides\)='method=roe'": lambda m, t: moe_lab.plan("method=roe"),
    "plans runs": lambda m, t: moe_lab.plan(["mode=prefetch"]),
    "give a second evaluation": lambda m, t: moe_lab.compare("a"),
    "give paths": lambda m, t: moe_lab.compare("a", 3),
    "a=nowhere has no results": lambda m, t: moe_lab.compare("nowhere", "elsewhere"),
}


@pytest.mark.parametrize("says", WRONG)
def test_a_wrong_call_is_one_message(olmoe, tokenizer, says):
    before = hooks_of(olmoe)
    with pytest.raises(MoeLabError, match=says) as caught:
        WRONG[says](olmoe, tokenizer)
    assert len(str(caught.value).splitlines()) <= 3
    assert "hydra/_internal" not in "".join(format_exception(caught.value))
    assert hooks_of(olmoe) == before
