"""Every family through the engine: `method=base` is the base model, RoE is the slow reference.

Contexts are shorter and longer than windows and chunks; batches hold unlike lengths.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
import torch

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.lm import EngineLM
from moe_lab.routing import GumbelTopK, find_routers
from moe_lab.routing.families import family_of_type
from moe_lab.routing.rules import LOGITS
from tests.support import roe_reference as reference
from tests.support.ensembles import answered
from tests.support.families import PUBLISHED, ZOO
from tests.support.models import make_tokenizer, small_model, text_type
from tests.support.tiers import FAST, by_family, first_fast

TOKENIZER = make_tokenizer()
PAIRS = [
    ("ab", "cd"),
    ("what lies before", " and"),
    ("what lies before", " or"),
    ("what lies before it is longer than", " is"),
    ("x", "y"),
]
SHORT_AND_LONG = [PAIRS[0], PAIRS[3]]
"""The second one is longer than all windows."""
PROMPTS = ["what", "a prompt longer than the window"]
NEW = 3
OPTIONS = {"until": [], "max_gen_toks": NEW, "do_sample": False}
GENERATIONS = [(prompt, OPTIONS) for prompt in PROMPTS]

RECURRENT = ("jamba", "qwen3_next")
LAYERS = (
    "deepseek_v32",
    "dots3_note_text",
    "gemma4_text",
    "granitemoehybrid",
    "inkling2_text",
    "kimi_linear",
    "lfm2_moe",
    "llama4_text",
    "longcat_flash",
    "minimax",
    "nemotron_h",
    "qwen2_moe",
    "qwen4_exp_text",
)
"""One family of each kind of layers' keys, values and states.

What samples keep of their own depends on nothing else.
"""


def of_all_families(setting: Any) -> list[Any]:
    """(setting, family) for all families, and for image-and-text models as they are published."""
    return [with_family(setting, family) for family in by_family([*sorted(ZOO), *PUBLISHED])]


def of_some_families(setting: Any, more_families: Iterable[str] = ()) -> list[Any]:
    """(setting, family) for those of FAST, Mixtral and more.

    In the fast tier for one family: `tests/engine` has such settings for OLMoE.
    """
    families = {*FAST, "mixtral", *more_families} - {"deepseek"}
    in_order = ["deepseek", *sorted(families)]
    return [with_family(setting, family) for family in first_fast(in_order)]


def with_family(setting: Any, family: Any) -> Any:
    """A case of a test; `family` is one of `by_family` or `first_fast`."""
    return pytest.param(setting, *family.values, marks=family.marks)


def assert_greedy(
    lm: EngineLM, log_probs_after: Callable[[list[int], list[int]], torch.Tensor]
) -> None:
    """The LM's answers to GENERATIONS are the greedy ones by (prompt, ids) -> [V]."""
    answers = answered(lm, "generate_until", GENERATIONS)
    for answer, prompt_text in zip(answers, PROMPTS, strict=True):
        prompt = TOKENIZER.encode(prompt_text)
        new_tokens: list[int] = []
        for _ in range(NEW):
            log_probs_V = log_probs_after(prompt, [*prompt, *new_tokens])
            best = log_probs_V.topk(2)
            gap = float(best.values[0] - best.values[1])
            assert gap > 1e-4, "choose other prompts: this one is a tie"
            token = int(best.indices[0])
            if token == TOKENIZER.eos_token_id:
                break
            new_tokens.append(token)
        assert answer == TOKENIZER.decode(new_tokens)


# The base model


@cache
def plain_log_probs(model_type: str, ids: tuple[int, ...]) -> torch.Tensor:
    """float32 [S, V] of one pass. A family's tests stand one after the other, and share passes."""
    with torch.inference_mode():
        logits = small_model(model_type)(torch.tensor([ids]), use_cache=False).logits
    return logits[0].float().log_softmax(-1)


@pytest.mark.parametrize(
    ("batch_size", "model_type"),
    [*of_all_families("auto"), *of_some_families(1), *of_some_families(2)],
)
def test_base_is_the_base_model(model_type, batch_size):
    lm = EngineLM(small_model(model_type), TOKENIZER, batch_size=batch_size, progress=False)

    scores = answered(lm, "loglikelihood", PAIRS)
    for (log_likelihood, is_greedy), (context, continuation) in zip(scores, PAIRS, strict=True):
        ids = TOKENIZER.encode(context + continuation)
        target_C = torch.tensor(TOKENIZER.encode(continuation))
        log_probs_CV = plain_log_probs(model_type, tuple(ids))[-len(target_C) - 1 : -1]
        expected = float(log_probs_CV.gather(1, target_C[:, None]).sum())
        assert log_likelihood == pytest.approx(expected, abs=1e-5 * len(target_C))
        assert is_greedy == bool((log_probs_CV.argmax(-1) == target_C).all())

    def log_probs_after(prompt: list[int], ids: list[int]) -> torch.Tensor:
        return plain_log_probs(model_type, tuple(ids))[-1]

    assert_greedy(lm, log_probs_after)


# RoE


@cache
def exact(model_type: str) -> Any:
    """The model in float64."""
    return reference.in_float64(small_model(model_type))


def temperatures_of(model_type: str) -> list[float]:
    """Noise in all MoE layers but the first (where there are several)."""
    layers = len(find_routers(small_model(model_type)))
    temperature = 0.2
    if family_of_type(text_type(model_type)).rule.noise == LOGITS:
        temperature = 1.0
    if layers == 1:
        return [temperature]
    return [0.0] + [temperature] * (layers - 1)


def samples_of(model_type: str) -> int:
    """A family does not know which sample it computes: 3 samples for some
    prompts, 2 for the others."""
    if model_type in FAST or model_type in RECURRENT:
        return 3
    return 2


@pytest.mark.parametrize(
    ("cache_kind", "model_type"),
    [
        *of_all_families("clean"),
        *of_some_families("none", RECURRENT),
        *of_some_families("standard", [*RECURRENT, *LAYERS]),
    ],
)
def test_roe_is_the_slow_reference(model_type, cache_kind):
    temperatures = temperatures_of(model_type)
    n = samples_of(model_type)
    first_noisy = 0 if len(temperatures) == 1 else 1
    routing = GumbelTopK(temperatures, seed=0)
    ensemble = Ensemble(n, routing, first_noisy, cache=cache_kind)
    lm = EngineLM(small_model(model_type), TOKENIZER, ensemble=ensemble, progress=False)

    def log_probs_after(prompt: list[int], ids: list[int]) -> torch.Tensor:
        probs_V = reference.next_token_probs(
            exact(model_type), prompt, ids, n, temperatures, cache=cache_kind
        )
        return probs_V.log()

    scores = answered(lm, "loglikelihood", SHORT_AND_LONG)
    for (log_likelihood, _), (context, continuation) in zip(scores, SHORT_AND_LONG, strict=True):
        prompt = TOKENIZER.encode(context)
        ids = list(prompt)
        expected = 0.0
        for token in TOKENIZER.encode(continuation):
            expected += float(log_probs_after(prompt, ids)[token])
            ids.append(token)
        assert log_likelihood == pytest.approx(expected, abs=1e-4)

    assert_greedy(lm, log_probs_after)

    counts = ensemble.routing.counts()
    assert 0.02 < counts["changed_decisions"] / counts["noisy_decisions"] < 0.98
