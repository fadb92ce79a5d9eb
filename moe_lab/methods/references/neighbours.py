"""The nearest references of questions (C3PO, equations 9 and 10).

R = references, Q = questions, X = size of an embedding, K = neighbours.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_BYTES = 64 * 2**20
"""Size of the similarities that are in memory at a time."""


@dataclass(frozen=True)
class Neighbours:
    """The neighbours of every question, nearest first.

    At equal distance the earlier reference comes first.
    """

    index_QK: Tensor
    """int64; -1: no further neighbour."""
    distance_QK: Tensor
    """float32: sqrt(2 - 2 cos), the distance of the unit vectors; infinite for a missing
    neighbour."""
    dropped_Q: Tensor
    """int64: number of references that were left out, because they are more similar than
    `most_similar`."""


def neighbours(
    query_QX: Tensor,
    reference_RX: Tensor,
    *,
    k: int,
    epsilon: float | None,
    most_similar: float = 0.95,
) -> Neighbours:
    """The k nearest references of every question (equation 9), or all within `epsilon` (equation
    10), maybe none.

    Args:
        query_QX: float32, rows of unit length.
        reference_RX: the same; may be empty.
        k: neighbours of each question if `epsilon` is None. K is then k, even with fewer
            references.
        epsilon: radius of the ball as a cosine distance, 1 - cos, from 0 to 2. K is then the size
            of the largest ball.
        most_similar: references with a larger cosine count as the question itself and are left out.
    """
    questions_at_once = max(1, CHUNK_BYTES // (4 * max(1, len(reference_RX))))
    chunks = []
    for chunk_QX in query_QX.split(questions_at_once):
        cosine_QR = chunk_QX.float() @ reference_RX.float().T
        chunks.append(_neighbours(cosine_QR, k, epsilon, most_similar))
    width = k
    if epsilon is not None:
        width = max(chunk.index_QK.shape[1] for chunk in chunks)
    return Neighbours(
        torch.cat([_padded(chunk.index_QK, width, -1) for chunk in chunks]),
        torch.cat([_padded(chunk.distance_QK, width, torch.inf) for chunk in chunks]),
        torch.cat([chunk.dropped_Q for chunk in chunks]),
    )


def _neighbours(
    cosine_QR: Tensor, k: int, epsilon: float | None, most_similar: float
) -> Neighbours:
    """`neighbours` of some questions, from the cosine of each question and reference.

    K is at most the number of references.
    """
    is_same_QR = cosine_QR > most_similar
    distance_QR = (2 - 2 * cosine_QR).clamp(min=0).sqrt().masked_fill(is_same_QR, torch.inf)
    width = k
    if epsilon is not None:
        distance_QR = distance_QR.masked_fill(1 - cosine_QR > epsilon, torch.inf)
        width = max(distance_QR.isfinite().sum(dim=1).tolist(), default=0)
    sorted_QR, order_QR = distance_QR.sort(dim=1, stable=True)
    distance_QK = sorted_QR[:, :width]
    index_QK = order_QR[:, :width].masked_fill(distance_QK.isinf(), -1)
    return Neighbours(index_QK, distance_QK, is_same_QR.sum(dim=1))


def _padded(tensor_QK: Tensor, width: int, value: float) -> Tensor:
    """[Q, width]: the rows, with `value` after their end."""
    return torch.nn.functional.pad(tensor_QK, (0, width - tensor_QK.shape[1]), value=value)
