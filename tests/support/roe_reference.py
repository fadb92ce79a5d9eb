"""RoE computed slowly and obviously: one row at a time, no cache, float64, one Python loop per expert choice.

Shares with the package the keyed noise alone (which has golden values of its own in tests/routing/test_noise.py). For
families with other rules than softmax and top-k it shares the rule too (tests/routing and tests/families see to these).
"""

from __future__ import annotations

import copy
import math
from typing import Any
from weakref import WeakKeyDictionary

import torch

from moe_lab.routing import GumbelTopK, document_key, gumbel, routed
from moe_lab.routing.noise import NoisyTokens

_rows: WeakKeyDictionary[torch.nn.Module, dict[Any, torch.Tensor]] = WeakKeyDictionary()
"""The rows of each model so far. Row 0 is the same for all histories, and each row for the caches standard and none."""

SOFTMAX = ("olmoe", "mixtral", "qwen2_moe", "qwen3_moe")


def routers_of(model):
    return [module for name, module in model.named_modules() if type(module).__name__.endswith("TopKRouter")]


def noisy_positions(prompt, ids, cache="clean", prefill="noisy"):
    """Which tokens of a row are routed with noise: in the clean cache the last one, whose history is row 0's."""
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

    The weights of a model do not change between calls: its passes are kept.
    `antithetic` is for families of SOFTMAX.
    """
    noise = (document_key(prompt), tuple(temperatures), seed, repeat, perturbed, antithetic)
    positions = tuple(noisy_positions(prompt, ids, **history))
    known = _rows.setdefault(model64, {})
    rows = []
    for row in range(n):
        key = (tuple(ids), row, positions, noise) if row else tuple(ids)
        if key not in known:
            document, *switches = noise
            known[key] = row_probs(model64, ids, list(positions), document, row, *switches)
        rows.append(known[key])
    return torch.stack(rows).mean(dim=0)


def row_probs(
    model64,
    ids,
    positions,
    document,
    row,
    temperatures,
    seed,
    repeat,
    perturbed,
    antithetic=False,
):
    if model64.config.model_type not in SOFTMAX:
        return _row_by_rule(model64, ids, positions, document, row, temperatures, seed, repeat, perturbed)
    handles = []
    for layer, router in enumerate(routers_of(model64)):
        if row == 0 or temperatures[layer] == 0:
            continue
        experts = router.weight.shape[0]
        noise = gumbel(seed, document, repeat, row, layer, positions, experts, antithetic).double()
        hook = _noisy(positions, noise, temperatures[layer], perturbed)
        handles.append(router.register_forward_hook(hook))
    with torch.no_grad():
        logits = model64(torch.tensor([ids]), use_cache=False).logits[0, -1]
    for handle in handles:
        handle.remove()
    return logits.softmax(-1)


def _row_by_rule(model64, ids, positions, document, row, temperatures, seed, repeat, perturbed):
    policy = GumbelTopK(temperatures, seed, perturbed)
    index = torch.tensor(positions)
    keys = [torch.full_like(index, key) for key in (document, repeat, row)]
    policy.expect(NoisyTokens(index, *keys, index) if row else None)
    with torch.no_grad(), routed(model64, policy):
        logits = model64(torch.tensor([ids]), use_cache=False).logits[0, -1]
    return logits.softmax(-1)


def _noisy(positions, noise, temperature, perturbed):
    def hook(router, args, output):
        logits, weights, index = output
        weights, index = weights.clone(), index.clone()
        for position, own in zip(positions, noise, strict=True):
            clean = logits[position]
            k = index.shape[-1]
            noisy = clean + temperature * own
            chosen = sorted(range(len(noisy)), key=lambda e: -float(noisy[e]))[:k]
            source = noisy if perturbed else clean
            total = sum(math.exp(float(value)) for value in source)
            new = [math.exp(float(source[e])) / total for e in chosen]
            if type(router).__name__.startswith("Mixtral") or getattr(router, "norm_topk_prob", False):
                new = [value / sum(new) for value in new]
            weights[position] = torch.tensor(new, dtype=weights.dtype)
            index[position] = torch.tensor(chosen)
        return logits, weights, index

    return hook


def score(model64, context, continuation, n, temperatures, seed=0, **switches):
    """(log-likelihood, whether greedy) of a continuation, token by token."""
    total, greedy = 0.0, True
    for i, token in enumerate(continuation):
        ids = [*context, *continuation[:i]]
        probs = next_token_probs(model64, context, ids, n, temperatures, seed, **switches)
        total += math.log(float(probs[token]))
        greedy &= int(probs.argmax()) == token
    return total, greedy


def generate(model64, prompt, n, temperatures, steps, seed=0, repeat=0, **switches):
    """Greedy tokens, and the smallest gap between the best two probabilities met on the way."""
    ids, gap = list(prompt), math.inf
    for _ in range(steps):
        probs = next_token_probs(model64, prompt, ids, n, temperatures, seed, repeat, **switches)
        best = probs.topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], gap


def in_float64(model):
    """grouped_mm knows no float64: the experts run in transformers' plain loop."""
    double = copy.deepcopy(model).double()
    double.set_experts_implementation("eager")
    return double
