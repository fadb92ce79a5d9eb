"""The mean log-probability of a generated answer's tokens, which confidence is computed from.

Broken by: a probability after temperature or logits processors, of another token than the chosen
one, of one routing sample in place of the average, or a sum in place of the mean.
"""

import pytest

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.engine.scoring import ScoringRequest
from moe_lab.routing import GumbelTopK, document_key, find_routers
from tests.support import rounding
from tests.support.ensembles import engine_of, plain
from tests.support.models import kv_cache_model, make_tokenizer, small_model

NEW_TOKENS = 6
PROMPTS = ["one prompt", "another one", "a third, longer than the others"]
OPTIONS = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.5, "top_k": 20},
    "penalized": {"do_sample": False, "repetition_penalty": 3.0},
}


def generated(lm, options):
    """By prompt: the answer, and the tokens of prompt and answer."""
    settings = {"until": [], "max_gen_toks": NEW_TOKENS, **options}
    requests = [Request((prompt, settings)) for prompt in PROMPTS]
    answers = {}
    with lm.keeping_tokens() as states:
        lm.answer("generate_until", requests, answers.__setitem__)
    return [(answers[i], states[prompt]) for i, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_is_that_of_transformers_before_temperature_and_processors(options):
    model = kv_cache_model("olmoe")
    lm = EngineLM(model, make_tokenizer(), progress=False)
    for answer, state in generated(lm, options):
        question = ScoringRequest(state.prompt, [state.generated], document_key(state.prompt))
        total, is_greedy = plain(model, question, state.generated)
        assert is_greedy == (options == OPTIONS["greedy"])
        expected = total / len(state.generated)
        assert answer.log_probability == rounding.approx(expected)


@pytest.mark.parametrize("family", ["olmoe", "qwen3_next"])
@pytest.mark.parametrize("options", [OPTIONS["greedy"], OPTIONS["sampled"]], ids=str)
def test_of_an_ensemble_it_is_that_of_the_averaged_distribution(family, options):
    model = small_model(family)
    temperatures = [1.0] * len(find_routers(model))
    ensemble = Ensemble(n=3, routing=GumbelTopK(temperatures, seed=1), first_noisy=0)
    lm = EngineLM(model, make_tokenizer(), ensemble=ensemble, progress=False)
    differs = False
    for answer, state in generated(lm, options):
        question = ScoringRequest(state.prompt, [state.generated], document_key(state.prompt))
        scores = {}
        engine_of(model, ensemble).score([question], scores.__setitem__)
        expected = scores[0][0][0] / len(state.generated)
        assert answer.log_probability == rounding.approx(expected)
        without_noise, _ = plain(model, question, state.generated)
        differs |= without_noise / len(state.generated) != rounding.approx(expected)
    assert differs
