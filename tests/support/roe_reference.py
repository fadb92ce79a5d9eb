"""RoE computed slowly and obviously: one routing sample at a time, no cache, float64,
one token after the other.

Shares with the package the keyed noise alone (which has golden values of its own
in tests/routing/test_noise.py).
"""

import copy
import math
from functools import lru_cache

import torch

from moe_lab.models.auto_class import experts_option
from moe_lab.routing import document_key, gumbel
from tests.support import slow_routing
from tests.support.families import ONE_WAY


def noisy_positions(prompt, ids, cache="clean", prefill="noisy"):
    """Which tokens of a sample are routed with noise.

    With the clean cache it is the last token, whose prefix is that of sample 0.
    """
    if cache == "clean":
        return range(len(ids) - 1, len(ids))
    return range(len(prompt) - 1 if prefill == "clean" else 0, len(ids))


def next_token_probs(
    model64,
    prompt,
    ids,
    n,
    temperatures,
    seed=0,
    repeat=0,
    perturbed=False,
    antithetic=False,
    **history,
):
    """float64 [V]: the ensemble's distribution after `ids`, which begin with the prompt.

    Passes are kept: the weights of a model must not change between calls.
    """
    noise = (document_key(prompt), tuple(temperatures), seed, repeat, perturbed, antithetic)
    positions = noisy_positions(prompt, ids, **history)
    clean = _sample_probs(model64, tuple(ids))
    noisy = [_sample_probs(model64, tuple(ids), row, positions, *noise) for row in range(1, n)]
    return torch.stack([clean, *noisy]).mean(0)


@lru_cache(maxsize=4000)
def _sample_probs(
    model64,
    ids,
    row=0,
    positions=range(0),
    document=0,
    temperatures=(),
    seed=0,
    repeat=0,
    perturbed=False,
    anti=False,
):
    handles = []
    for layer, temperature in enumerate(temperatures):
        if temperature:

            def draw(experts, layer=layer):
                return gumbel(seed, document, repeat, row, layer, positions, experts, anti).double()

            handles += slow_routing.install(model64, layer, positions, draw, temperature, perturbed)
    with torch.inference_mode():
        logits_V = model64(torch.tensor([ids]), use_cache=False).logits[0, -1]
    for handle in handles:
        handle.remove()
    return logits_V.double().softmax(-1)


def score(model64, context, continuation, n, temperatures, seed=0, **switches):
    """(log-likelihood, whether greedy) of a continuation, token by token."""
    total = 0.0
    greedy = True
    for i, token in enumerate(continuation):
        ids = [*context, *continuation[:i]]
        probs = next_token_probs(model64, context, ids, n, temperatures, seed, **switches)
        total += math.log(float(probs[token]))
        greedy &= int(probs.argmax()) == token
    return total, greedy


def generate(model64, prompt, n, temperatures, steps, seed=0, repeat=0, **switches):
    """Greedy tokens, and the smallest gap between the best two probabilities met on the way."""
    ids = list(prompt)
    gap = math.inf
    for _ in range(steps):
        probs = next_token_probs(model64, prompt, ids, n, temperatures, seed, repeat, **switches)
        best = probs.topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], gap


def in_float64(model):
    """The model in float64, its experts in transformers' plain loop, if the family can."""
    double = copy.deepcopy(model)
    text_type = model.config.get_text_config().model_type
    if text_type != "inkling2_text":  # mixes float32 into everything
        double = double.double()
    if text_type not in ONE_WAY:
        double.set_experts_implementation(experts_option(model.config, "eager"))
    return double
