"""Training of the toy judge: python -m moe_lab.tasks.judges.toy_training <file>.safetensors

Logistic loss on requests of the `train` split with answers that name the requested kind, refuse, or are off-topic;
full-batch Adam. Shapes as in `moe_lab.tasks.judges.toy`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from moe_lab.tasks.judges.judge import Exchange
from moe_lab.tasks.judges.toy import BUCKETS, features
from moe_lab.tasks.toy.requests import judged_answers

HIDDEN = 16
EXAMPLES = 20000
STEPS = 600
LEARNING_RATE = 0.02
WEIGHT_DECAY = 0.2


def train() -> dict[str, torch.Tensor]:
    """The weights, float16, from seed 0."""
    rows = judged_answers("train", EXAMPLES)
    inputs_NF = torch.from_numpy(features([Exchange(row["instruction"], row["answer"]) for row in rows]))
    harm_N = torch.tensor([float(row["harm"]) for row in rows])
    random = torch.Generator().manual_seed(0)
    weights = {
        "in_FH": torch.randn(2 * BUCKETS, HIDDEN, generator=random) * 0.1,
        "bias_H": torch.zeros(HIDDEN),
        "out_H": torch.randn(HIDDEN, generator=random) * 0.1,
        "bias": torch.zeros(1),
    }
    optimizer = torch.optim.AdamW(
        [tensor.requires_grad_() for tensor in weights.values()], lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
    )
    for _ in range(STEPS):
        hidden_NH = torch.tanh(inputs_NF @ weights["in_FH"] + weights["bias_H"])
        logits_N = hidden_NH @ weights["out_H"] + weights["bias"]
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(logits_N, harm_N).backward()
        optimizer.step()
    return {name: tensor.detach().half() for name, tensor in weights.items()}


def main(file: Path) -> None:
    """Train and write."""
    from safetensors.torch import save_file

    save_file(train(), file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
