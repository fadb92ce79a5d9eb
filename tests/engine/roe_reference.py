"""RoE computed slowly and obviously: one row at a time, no cache, float64, one Python loop per expert choice.

Shares with the package the keyed noise alone (which has golden values of its own in tests/routing/test_noise.py).
"""

from __future__ import annotations

import copy
import math

import torch

from moe_lab.routing import document_key, gumbel


def routers_of(model):
    return [module for name, module in model.named_modules() if type(module).__name__.endswith("TopKRouter")]


def next_token_probs(model64, ids, document, n, temperatures, seed=0, repeat=0, **switches):
    """float64 [V]: the ensemble's distribution after `ids`, noise at the last token only."""
    rows = [
        row_probs(model64, ids, document, row, temperatures, seed, repeat, **switches) for row in range(n)
    ]
    return torch.stack(rows).mean(dim=0)


def row_probs(model64, ids, document, row, temperatures, seed, repeat, perturbed=False):
    position = len(ids) - 1
    handles = []
    for layer, router in enumerate(routers_of(model64)):
        if row == 0 or temperatures[layer] == 0:
            continue
        noise = gumbel(seed, document, repeat, row, layer, [position], router.weight.shape[0])[0].double()
        handles.append(router.register_forward_hook(_noisy_last_token(noise, temperatures[layer], perturbed)))
    with torch.no_grad():
        logits = model64(torch.tensor([ids]), use_cache=False).logits[0, -1]
    for handle in handles:
        handle.remove()
    return logits.softmax(-1)


def _noisy_last_token(noise, temperature, perturbed):
    def hook(router, args, output):
        logits, weights, index = output
        clean = logits[-1]
        noisy = clean + temperature * noise
        k = index.shape[-1]
        chosen = sorted(range(len(noisy)), key=lambda e: -float(noisy[e]))[:k]
        source = noisy if perturbed else clean
        total = sum(math.exp(float(value)) for value in source)
        new = [math.exp(float(source[e])) / total for e in chosen]
        if type(router).__name__.startswith("Mixtral") or getattr(router, "norm_topk_prob", False):
            new = [value / sum(new) for value in new]
        weights, index = weights.clone(), index.clone()
        weights[-1] = torch.tensor(new, dtype=weights.dtype)
        index[-1] = torch.tensor(chosen)
        return logits, weights, index

    return hook


def score(model64, context, continuation, n, temperatures, seed=0, **switches):
    """(log-likelihood, whether greedy) of a continuation: every token predicted from a clean history."""
    total, greedy = 0.0, True
    for i, token in enumerate(continuation):
        ids = [*context, *continuation[:i]]
        probs = next_token_probs(model64, ids, document_key(context), n, temperatures, seed, **switches)
        total += math.log(float(probs[token]))
        greedy &= int(probs.argmax()) == token
    return total, greedy


def generate(model64, prompt, n, temperatures, steps, seed=0, repeat=0):
    """Greedy tokens, and the smallest gap between the best two probabilities met on the way."""
    ids, gap = list(prompt), math.inf
    for _ in range(steps):
        probs = next_token_probs(model64, ids, document_key(prompt), n, temperatures, seed, repeat)
        best = probs.topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], gap


def in_float64(model):
    """grouped_mm knows no float64: the experts run in transformers' plain loop."""
    double = copy.deepcopy(model).double()
    double.set_experts_implementation("eager")
    return double
