"""Generation with re-routed tokens equals whole passes.

Broken by: a pathway given to another prompt's tokens or to padding, one that ends too early or too
late, a share that is not the token's own rest.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from moe_lab.engine.generate import generate
from moe_lab.engine.sampling import Decoding, GenerationState, Sampler, generation_config
from moe_lab.engine.scoring import Budget
from moe_lab.engine.suffix import PERSISTENCE, ReroutedForward
from moe_lab.engine.token_span import TokenSpan
from moe_lab.routing import document_key, find_routers
from tests.support.brute_prompt_tail import FAMILIES, Decision, prompts, routed_logits
from tests.support.ensembles import never
from tests.support.models import small_model
from tests.support.suffixes import changed_layers, of_question

STEPS = 5
SPANS = [TokenSpan(), TokenSpan("first", 1), TokenSpan("middle", 3), TokenSpan("last", 3)]


def pathways(model: Any, count: int, span: TokenSpan) -> dict[int, Tensor]:
    """Other probabilities [prompts, W, E] of the later layers."""
    torch.manual_seed(3)
    experts = find_routers(model)[0].module.weight.shape[0]
    probs = {}
    for layer in changed_layers(model):
        probs[layer] = torch.rand(count, span.size, experts).mul(3).softmax(-1)
    return probs


def share_of(position: int, length: int, span: TokenSpan, persistence: str) -> tuple[int, float]:
    """(which pathway, its share) of a token of a prompt of this length, from the definition."""
    start = span.start(length)
    last_pathway = span.size - 1
    if position < length:
        if start <= position < start + span.size:
            return position - start, 1.0
        return last_pathway, 0.0
    if persistence == "prompt_last":
        return last_pathway, 0.0
    if persistence == "all_new":
        return last_pathway, 1.0
    assert persistence == "decay"
    new_tokens = position - length + 1
    return last_pathway, 0.5**new_tokens


def whole_pass(
    model: Any,
    ids: list[int],
    length: int,
    probs: dict[int, Tensor],
    span: TokenSpan,
    persistence: str,
) -> Tensor:
    """Logits [V] after the last of these tokens, in one pass over all of them.

    `probs` are [W, E].
    """

    def decide(layer: int, t: int, logits_E: Tensor) -> Decision | None:
        pathway, share = share_of(t, length, span, persistence)
        if share == 0:
            return None
        own_E = logits_E.float().softmax(-1)
        return share * probs[layer][pathway] + (1 - share) * own_E, None

    with torch.no_grad():
        return routed_logits(model, ids, probs, decide)[-1]


def cases() -> list[Any]:
    """Every pair of a span and a persistence, each in some family."""
    all_cases = []
    for i, family in enumerate(FAMILIES):
        for j, span in enumerate(SPANS):
            persistence = PERSISTENCE[(i + j) % 3]
            marks = [] if i == 0 else [pytest.mark.slow]
            all_cases.append(pytest.param(family, span, persistence, marks=marks))
    return all_cases


@pytest.mark.parametrize(("family", "span", "persistence"), cases(), ids=str)
def test_generated_tokens_are_those_of_whole_passes(family, span, persistence):
    model = small_model(family)
    states = []
    for index, prompt in enumerate(prompts(least=span.size)):
        states.append(GenerationState(index, prompt, document_key(prompt)))
    probs = pathways(model, len(states), span)
    sampler = Sampler(model, generation_config(model, {}), 0)
    logits: dict[tuple[int, int], Tensor] = {}

    def choose(scores_AV: Tensor, active: list[GenerationState]) -> list[int]:
        for scores_V, state in zip(scores_AV, active, strict=True):
            logits[state.index, len(state.generated)] = scores_V
        return sampler(scores_AV, active)

    with ReroutedForward(model, states, probs, span, persistence) as forward:
        decoding = Decoding(choose, never, STEPS)
        generate(forward, states, Budget(64), decoding, lambda state: None)

    for state in states:
        for step in range(STEPS):
            expected_V = whole_pass(
                model,
                [*state.prompt, *state.generated[:step]],
                len(state.prompt),
                of_question(probs, state.index),
                span,
                persistence,
            )
            found_V = logits[state.index, step]
            assert torch.allclose(found_V, expected_V.float(), atol=2e-5), (state.index, step)


def test_persistence_matters():
    """Else the checks above could compare the same thing three times."""
    model = small_model("olmoe")
    span = TokenSpan()
    ids = prompts()[0]
    probs = of_question(pathways(model, 1, span), 0)
    first_V, second_V, third_V = [
        whole_pass(model, ids, 20, probs, span, persistence) for persistence in PERSISTENCE
    ]
    assert not torch.allclose(first_V, second_V, atol=1e-3)
    assert not torch.allclose(second_V, third_V, atol=1e-3)
