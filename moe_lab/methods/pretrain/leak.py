"""How much expert choice gains from later tokens.

R = rows, P = target positions, S = positions of a row, V = vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from moe_lab.results.measured import Difference
from moe_lab.results.statistics import bootstrap_interval

ROWS = 32
"""Validation rows that `leak` reads."""
POSITIONS = 128
"""The largest number of targets of a row, evenly spaced. Each takes two passes over the rows."""
TOKENS = 2**14
"""The largest number of tokens of a pass, unless one row has more."""


@torch.no_grad()
def leak(model: Any, held_out: Any) -> dict[str, Any]:
    """The gain of expert choice from later tokens,
    which a causal model does not have (MoE-Bench, Table 3).

    A pass over only a prefix differs from a pass over the whole row in two ways: the later tokens
    are missing, and the sequence is shorter, so each expert takes fewer tokens. A third pass
    separates them: the prefix with the later tokens of the next row. All losses are cross-entropies
    per token of some validation rows (two or more).

    `later_tokens` is the effect of the later tokens: the loss with another row's minus the loss
    with the true ones. `short_prefixes` is the effect of the shorter sequence: the loss of the
    prefix alone minus that with another row's. `difference` is their sum.
    """
    model.eval()
    rows_RS = torch.from_numpy(held_out[:ROWS]).long()
    others_RS = rows_RS.roll(-1, dims=0)
    length = rows_RS.shape[1]
    targets_P = torch.linspace(1, length - 1, min(POSITIONS, length - 1)).round().long()
    size = max(1, TOKENS // length)
    parts = []
    for part_RS, other_RS in zip(rows_RS.split(size), others_RS.split(size), strict=True):
        losses = _losses(model, part_RS.to(model.device), other_RS.to(model.device), targets_P)
        parts.append(losses)
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
    """[3, R]: each row's loss with its later tokens, with those of the other row,
    and without any."""
    before_P = (targets_P - 1).to(rows_RS.device)
    whole_RPV = model(input_ids=rows_RS, logits_to_keep=before_P).logits
    replaced = []
    prefix = []
    for target, last in zip(targets_P.tolist(), before_P.split(1), strict=True):
        prefix_RS = rows_RS[:, :target]
        mixed_RS = torch.cat([prefix_RS, others_RS[:, target:]], dim=1)
        replaced.append(model(input_ids=mixed_RS, logits_to_keep=last).logits[:, 0])
        prefix.append(model(input_ids=prefix_RS, logits_to_keep=1).logits[:, 0])

    targets_RP = rows_RS[:, before_P + 1]
    losses = []
    for logits_RPV in (whole_RPV, torch.stack(replaced, dim=1), torch.stack(prefix, dim=1)):
        loss_RP = cross_entropy(logits_RPV.float().transpose(1, 2), targets_RP, reduction="none")
        losses.append(loss_RP.mean(1))
    return torch.stack(losses)


def _difference(difference_R: Tensor) -> dict[str, Any]:
    interval = bootstrap_interval(difference_R.tolist())
    difference = Difference(difference=float(difference_R.mean()), interval=interval)
    return difference.to_json()
