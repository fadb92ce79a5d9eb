"""Exact nearest neighbours among the references, by one matrix product.

Q = questions, R = references, X = size of an embedding, K = most neighbours that a question has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

CHUNK_BYTES = 64 * 2**20
"""Size of the similarities that are held at a time."""


@dataclass(frozen=True)
class Neighbours:
    """The neighbours of every question, nearest first; of equally near ones the earlier reference first."""

    index_QK: Tensor
    """int64; -1: no further neighbour."""
    distance_QK: Tensor
    """float32: sqrt(2 - 2 cos), the distance of the unit vectors; infinite where there is no neighbour."""
    dropped_Q: Tensor
    """int64: references left out as more similar to the question than `most_similar`."""

    def abstaining(self, distance: float | None) -> tuple[Neighbours, Tensor]:
        """(the same without those of questions whose nearest reference is farther, bool [Q]: which these are).

        Args:
            distance: None: no question abstains.
        """
        nearest_Q1 = self.distance_QK[:, :1]
        limit = torch.inf if distance is None else distance
        far_Q = (nearest_Q1.isfinite() & (nearest_Q1 > limit)).any(dim=1)
        far_Q1 = far_Q[:, None]
        left = replace(
            self,
            index_QK=self.index_QK.masked_fill(far_Q1, -1),
            distance_QK=self.distance_QK.masked_fill(far_Q1, torch.inf),
        )
        return left, far_Q


def neighbours(
    query_QX: Tensor, reference_RX: Tensor, *, k: int, epsilon: float | None, most_similar: float = 0.95
) -> Neighbours:
    """The k nearest references of every question (equation 9), or all within `epsilon` (10), which may be none.

    Args:
        query_QX, reference_RX: float32, rows of unit length.
        k: neighbours of each question, if `epsilon` is None; K is then k, also where there are fewer references.
        epsilon: radius of the ball as a cosine distance, 1 - cos, from 0 to 2; K is the size of the fullest ball.
        most_similar: references with a larger cosine are taken for the question itself and left out.
    """
    rows = max(1, CHUNK_BYTES // (4 * max(1, len(reference_RX))))
    parts = [_nearest(chunk, reference_RX, k, epsilon, most_similar) for chunk in query_QX.split(rows)]
    width = k if epsilon is None else max((part.index_QK.shape[1] for part in parts), default=0)
    return Neighbours(
        torch.cat([_padded(part.index_QK, width, -1) for part in parts]),
        torch.cat([_padded(part.distance_QK, width, torch.inf) for part in parts]),
        torch.cat([part.dropped_Q for part in parts]),
    )


def _nearest(
    query_QX: Tensor, reference_RX: Tensor, k: int, epsilon: float | None, most_similar: float
) -> Neighbours:
    cosine_QR = query_QX.float() @ reference_RX.float().T
    same_QR = cosine_QR > most_similar
    distance_QR = (2 - 2 * cosine_QR).clamp(min=0).sqrt().masked_fill(same_QR, torch.inf)
    if epsilon is not None:
        distance_QR = distance_QR.masked_fill(1 - cosine_QR > epsilon, torch.inf)
        k = max(distance_QR.isfinite().sum(dim=1).tolist(), default=0)
    distance_QK, index_QK = distance_QR.sort(dim=1, stable=True)
    distance_QK, index_QK = distance_QK[:, :k], index_QK[:, :k]
    return Neighbours(index_QK.masked_fill(distance_QK.isinf(), -1), distance_QK, same_QR.sum(dim=1))


def _padded(tensor_QK: Tensor, width: int, value: float) -> Tensor:
    return torch.nn.functional.pad(tensor_QK, (0, width - tensor_QK.shape[1]), value=value)
