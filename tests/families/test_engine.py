"""Every family through the engine: `method=base` is the untouched model, RoE is the slow reference.

Contexts are shorter and longer than windows and chunks; batches hold unlike lengths.
"""

from functools import cache, partial

import pytest
import torch

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.lm import EngineLM
from moe_lab.routing import GumbelTopK, find_routers
from moe_lab.routing.families import family_of_type
from moe_lab.routing.rules import LOGITS
from tests.support import roe_reference as reference
from tests.support.ensembles import answered
from tests.support.families import ZOO
from tests.support.models import make_tokenizer, small_model
from tests.support.tiers import FAST, by_family, first_fast

TOKENIZER = make_tokenizer()
PAIRS = [
    ("ab", "cd"),
    ("what lies before", " and"),
    ("what lies before", " or"),
    ("what lies before it is longer than", " is"),
    ("x", "y"),
]
SHORT_AND_LONG = [0, 3]
"""Two of them: one is longer than all windows."""
PROMPTS = ["what", "a prompt longer than the window"]
NEW = 3
ASKED = [(prompt, {"until": [], "max_gen_toks": NEW, "do_sample": False}) for prompt in PROMPTS]


@cache
def plain_log_probs(model_type, ids):
    """float32 [S, V] of one pass. A family's tests stand one after the other, and share passes."""
    with torch.inference_mode():
        logits = small_model(model_type)(torch.tensor([ids]), use_cache=False).logits
    return logits[0].float().log_softmax(-1)


def greedy_by(log_probs_after, prompt):
    """(greedy tokens, the smallest gap between the best two log-probabilities met on the way)."""
    ids, gap = list(prompt), float("inf")
    for _ in range(NEW):
        best = log_probs_after(ids).topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        if int(best.indices[0]) == TOKENIZER.eos_token_id:
            break
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], gap


RECURRENT = ("jamba", "qwen3_next")
LAYERS = (
    "deepseek_v32 dots3_note_text gemma4_text granitemoehybrid inkling2_text kimi_linear lfm2_moe llama4_text "
    "longcat_flash minimax nemotron_h qwen2_moe qwen4_exp_text"
).split()
"""One family of each kind of layers' keys, values and states. What samples keep of their own depends on nothing else."""


def settings_of_families(everywhere, others, families=()):
    """(setting, family): all families with the settings `everywhere`; those of FAST, Mixtral and `families` with `others`.

    In the fast tier `others` are for one family: `tests/engine` has them for OLMoE.
    """
    some = sorted({*FAST, "mixtral", *families}, key=lambda family: (family != "deepseek", family))
    pairs = [(setting, family) for setting in everywhere for family in by_family(sorted(ZOO))]
    pairs += [(setting, family) for setting in others for family in first_fast(some)]
    return [pytest.param(setting, *family.values, marks=family.marks) for setting, family in pairs]


@pytest.mark.parametrize("batch_size, model_type", settings_of_families(["auto"], [1, 2]))
def test_base_is_the_untouched_model(model_type, batch_size):
    lm = EngineLM(small_model(model_type), TOKENIZER, batch_size=batch_size, progress=False)
    scored = answered(lm, "loglikelihood", PAIRS)
    for (value, greedy), (context, continuation) in zip(scored, PAIRS, strict=True):
        ids, target = TOKENIZER.encode(context + continuation), TOKENIZER.encode(continuation)
        log_probs = plain_log_probs(model_type, tuple(ids))[-len(target) - 1 : -1]
        expected = log_probs.gather(1, torch.tensor(target)[:, None]).sum()
        assert value == pytest.approx(float(expected), abs=1e-5 * len(target))
        assert greedy == bool((log_probs.argmax(-1) == torch.tensor(target)).all())
    for text, prompt in zip(answered(lm, "generate_until", ASKED), PROMPTS, strict=True):
        ids = TOKENIZER.encode(prompt)
        expected, gap = greedy_by(lambda ids: plain_log_probs(model_type, tuple(ids))[-1], ids)
        assert gap > 1e-4, "choose other prompts: this one is a tie"
        assert text == TOKENIZER.decode(expected)


@cache
def exact(model_type):
    return reference.in_float64(small_model(model_type))


def ensemble_of(model_type, cache_kind):
    """2 samples, 3 of some families; noise in all MoE layers but the first (where there are several)."""
    family, layers = family_of_type(model_type), len(find_routers(small_model(model_type)))
    temperature = 1.0 if family.rule.noise == LOGITS else 0.2
    first = int(layers > 1)
    temperatures = [0.0] * first + [temperature] * (layers - first)
    routing = GumbelTopK(temperatures, seed=0)
    # a family does not know which sample it computes
    n = 3 if model_type in (*FAST, *RECURRENT) else 2
    return Ensemble(n=n, routing=routing, first_noisy=first, cache=cache_kind), temperatures


@pytest.mark.parametrize(
    "cache_kind, model_type",
    settings_of_families(["clean"], ["none"], RECURRENT)
    + settings_of_families([], ["standard"], (*RECURRENT, *LAYERS)),
)
def test_roe_is_the_slow_reference(model_type, cache_kind):
    ensemble, temperatures = ensemble_of(model_type, cache_kind)
    lm = EngineLM(small_model(model_type), TOKENIZER, ensemble=ensemble, progress=False)

    def log_probs_after(prompt, ids):
        given = (prompt, ids, ensemble.n, temperatures)
        return reference.next_token_probs(exact(model_type), *given, cache=cache_kind).log()

    found = answered(lm, "loglikelihood", [PAIRS[i] for i in SHORT_AND_LONG])
    for (value, _), i in zip(found, SHORT_AND_LONG, strict=True):
        context, continuation = PAIRS[i]
        prompt, target = TOKENIZER.encode(context), TOKENIZER.encode(continuation)
        steps = [log_probs_after(prompt, [*prompt, *target[:t]]) for t in range(len(target))]
        expected = sum(float(step[token]) for step, token in zip(steps, target, strict=True))
        assert value == pytest.approx(expected, abs=1e-4)
    for text, prompt in zip(answered(lm, "generate_until", ASKED), PROMPTS, strict=True):
        ids = TOKENIZER.encode(prompt)
        expected, gap = greedy_by(partial(log_probs_after, ids), ids)
        assert gap > 1e-4, "choose other prompts: this one is a tie"
        assert text == TOKENIZER.decode(expected)
    changed, decided = ensemble.routing.counts().values()
    assert 0.02 < changed / decided < 0.98
