"""The order of conversations: it depends on seed and epoch, and not on the number of processes.

accelerate gives the batches of an order to the processes in turn. Where they do not come out even it would repeat
conversations; here the last ones are empty instead, so that several processes make the steps of a single one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.utils.data import Sampler

from moe_lab.methods.conversations.tokenize import EMPTY


class Order(Sampler[int]):
    """Numbers of all rows, shuffled anew in each epoch, then `EMPTY` for each one missing to a multiple of `share`."""

    def __init__(self, rows: int, share: int, seed: int, epoch: Callable[[], int]):
        self.rows, self.seed, self.epoch = rows, seed, epoch
        self.missing = -rows % share

    def __len__(self) -> int:
        return self.rows + self.missing

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch())
        yield from torch.randperm(self.rows, generator=generator).tolist()
        yield from [EMPTY] * self.missing
