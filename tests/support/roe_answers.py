"""RoE's answers of a loaded model to a few requests."""

from __future__ import annotations

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.lm import EngineLM
from moe_lab.routing import GumbelTopK, find_routers
from tests.support.ensembles import answered
from tests.support.models import make_tokenizer

PAIRS = [("ab", "cd"), ("what lies before", " or it is longer")]
PROMPTS = ["a prompt that is longer"]


def roe_answers(model):
    layers = len(find_routers(model))
    ensemble = Ensemble(n=3, routing=GumbelTopK([0.5] * layers, seed=1), first_noisy=0)
    lm = EngineLM(model, make_tokenizer(), ensemble=ensemble, progress=False)
    options = {"until": [], "max_gen_toks": 2, "do_sample": False}
    found = [value for value, _ in answered(lm, "loglikelihood", PAIRS)]
    found += answered(lm, "generate_until", [(prompt, options) for prompt in PROMPTS])
    return dict(enumerate(found))
