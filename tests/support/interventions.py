"""What masked and random routing are compared with: models and policies that are made by hand."""

import re
from typing import Any

import torch

from moe_lab.engine.forward.batch import prefix_names
from moe_lab.metrics.teacher_forcing import NO_LABEL
from moe_lab.routing import Router, Routing, gumbel
from tests.support.families import VOCAB
from tests.support.models import make_model


def without_experts(model: Any, family: str, masked: list[int]) -> Any:
    """The same model with one expert fewer in each layer: its router row
    and its weights are removed."""
    config = model.config
    experts = next(key for key in ("num_experts", "num_local_experts") if hasattr(config, key))
    E = getattr(config, experts)
    smaller = make_model(family, **{experts: E - 1})
    state = {}
    for name, tensor in model.state_dict().items():
        layer = re.search(r"layers\.(\d+)\.", name)
        if tensor.shape != smaller.state_dict()[name].shape:
            assert layer is not None
            kept_experts = [e for e in range(E) if e != masked[int(layer[1])]]
            tensor = tensor[kept_experts]
        state[name] = tensor
    smaller.load_state_dict(state)
    return smaller


def by_hand(ids: list[int], seed: int) -> Any:
    names = prefix_names(ids)

    def policy(router: Router, routing: Routing) -> Routing:
        index = []
        weights = []
        for t in range(len(ids)):
            noise = gumbel(
                seed, int(names[t]), 0, 0, router.layer, [t], routing.logits_TE.shape[-1]
            )[0]
            order = sorted(range(len(noise)), key=lambda e, noise=noise: -float(noise[e]))
            index.append(order[: routing.index_TK.shape[-1]])
            weights.append(sorted(routing.weights_TK[t].tolist(), reverse=True))
        made = torch.tensor(weights, dtype=routing.weights_TK.dtype)
        return Routing(routing.logits_TE, made, torch.tensor(index))

    return policy


def some_rows(count: int = 9) -> list[dict[str, list[int]]]:
    """Rows of different lengths, the first half of each without labels.

    The labels are tokens that a model may or may not predict.
    """
    random = torch.Generator().manual_seed(0)
    rows = []
    for number in range(count):
        ids = torch.randint(1, VOCAB - 1, (4 + 5 * number % 17,), generator=random).tolist()
        labels = [NO_LABEL if place < len(ids) // 2 else token for place, token in enumerate(ids)]
        rows.append({"input_ids": ids, "labels": labels})
    return rows
