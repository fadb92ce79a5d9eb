"""MXFP4 and block-wise FP8 written out element by element, with what they become when read again."""

from __future__ import annotations

import math

import torch
from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of a four-bit float; the fourth bit is the sign."""
MX_BLOCK = 32
FP8_BLOCK = 16
FP8_MAX = 448.0


def mxfp4(rows_RC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(blocks uint8 [R, C/32, 16], scales uint8 [R, C/32], the same weights as read again [R, C])."""
    n_rows, n_columns = rows_RC.shape
    groups = n_columns // MX_BLOCK
    blocks = torch.zeros(n_rows, groups, MX_BLOCK // 2, dtype=torch.uint8)
    scales = torch.zeros(n_rows, groups, dtype=torch.uint8)
    read_RC = torch.zeros(n_rows, n_columns)
    for row in range(n_rows):
        for group in range(groups):
            values = rows_RC[row, group * MX_BLOCK : (group + 1) * MX_BLOCK].tolist()
            exponent = math.floor(math.log2(max(map(abs, values)))) - 2
            scales[row, group] = exponent + 127
            for i, value in enumerate(values):
                scaled = abs(value) / 2**exponent
                code = min(range(8), key=lambda c, scaled=scaled: abs(E2M1[c] - scaled))
                sign = -1.0 if value < 0 else 1.0
                read_RC[row, group * MX_BLOCK + i] = sign * E2M1[code] * 2**exponent
                nibble = code + (8 if value < 0 else 0)
                blocks[row, group, i // 2] |= nibble << (4 * (i % 2))
    return blocks, scales, read_RC


def fp8(weight_RC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(float8 [R, C], scales float32 [R/16, C/16], the same weights as read again [R, C])."""
    n_rows, n_columns = (size // FP8_BLOCK for size in weight_RC.shape)
    stored_RC = torch.zeros_like(weight_RC).to(torch.float8_e4m3fn)
    scales = torch.zeros(n_rows, n_columns)
    read_RC = torch.zeros_like(weight_RC)
    for row in range(n_rows):
        for column in range(n_columns):
            block = (
                slice(row * FP8_BLOCK, (row + 1) * FP8_BLOCK),
                slice(column * FP8_BLOCK, (column + 1) * FP8_BLOCK),
            )
            scale = weight_RC[block].abs().max() / FP8_MAX
            scales[row, column] = scale
            stored_RC[block] = (weight_RC[block] / scale).to(torch.float8_e4m3fn)
            read_RC[block] = stored_RC[block].float() * scale
    return stored_RC, scales, read_RC
