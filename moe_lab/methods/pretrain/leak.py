"""What expert choice gains from later tokens, which a causal model does not have (MoE-Bench's best row in Table 3).

A pass over a prefix alone differs from a pass over the whole row in two things: the later tokens are missing, and the
sequence is shorter, so that each expert takes fewer tokens. A third pass tells them apart: the prefix with the later
tokens of another row, as long as the whole row.

R = rows, P = target positions, S = positions of a row, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from moe_lab.results.statistics import bootstrap_interval

ROWS = 32
"""Held-out rows that are read."""
POSITIONS = 128
"""Most targets of a row, evenly spaced: each costs two passes over the rows."""
TOKENS = 2**14
"""Most tokens of a pass, unless one row has more."""


@torch.no_grad()
def leak(model: Any, held_out: Any) -> dict[str, Any]:
    """Cross-entropy per token of some held-out rows: with their later tokens, with another row's, and without any.

    `later_tokens` is the information from later tokens: the loss with another row's minus the loss with the true ones.
    `short_prefixes` is the effect of the shorter sequence: the loss of the prefix alone minus that with another row's.
    `difference` is their sum. The other row is the next one, which needs two held-out rows.
    """
    model.eval()
    rows_RS = torch.from_numpy(held_out[:ROWS]).long()
    others_RS = rows_RS.roll(-1, dims=0)
    length = rows_RS.shape[1]
    targets_P = torch.linspace(1, length - 1, min(POSITIONS, length - 1)).round().long()
    size = max(1, TOKENS // length)
    parts = [
        _losses(model, rows.to(model.device), others.to(model.device), targets_P)
        for rows, others in zip(rows_RS.split(size), others_RS.split(size), strict=True)
    ]
    whole_R, replaced_R, prefix_R = torch.cat(parts, dim=1).cpu()
    return {
        "rows": len(rows_RS),
        "positions": len(targets_P),
        "loss_with_later_tokens": float(whole_R.mean()),
        "loss_with_another_rows": float(replaced_R.mean()),
        "loss_without": float(prefix_R.mean()),
        "later_tokens": _difference(replaced_R - whole_R),
        "short_prefixes": _difference(prefix_R - replaced_R),
        **_difference(prefix_R - whole_R),
    }


def _losses(model: Any, rows_RS: Tensor, others_RS: Tensor, targets_P: Tensor) -> Tensor:
    """[3, R]: each row's loss with its later tokens, with those of the other row, and without any."""
    whole_RPV = model(input_ids=rows_RS, logits_to_keep=(targets_P - 1).to(rows_RS.device)).logits
    passes = list(_passes(model, rows_RS, others_RS, targets_P))
    replaced_RPV, prefix_RPV = (torch.stack(logits, dim=1) for logits in zip(*passes, strict=True))
    targets_RP = rows_RS[:, targets_P.to(rows_RS.device)]
    losses = [
        torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), targets_RP, reduction="none").mean(
            1
        )
        for logits in (whole_RPV, replaced_RPV, prefix_RPV)
    ]
    return torch.stack(losses)


def _passes(
    model: Any, rows_RS: Tensor, others_RS: Tensor, targets_P: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """By target: the logits [R, V] in front of it, with the other row's tokens from it on, and without any."""
    for target in targets_P.tolist():
        mixed_RS = torch.cat([rows_RS[:, :target], others_RS[:, target:]], dim=1)
        last = torch.tensor([target - 1], device=rows_RS.device)
        replaced_RV = model(input_ids=mixed_RS, logits_to_keep=last).logits[:, 0]
        yield replaced_RV, model(input_ids=rows_RS[:, :target], logits_to_keep=1).logits[:, 0]


def _difference(difference_R: Tensor) -> dict[str, Any]:
    return {
        "difference": float(difference_R.mean()),
        "ci95": bootstrap_interval(difference_R.tolist()),
    }
