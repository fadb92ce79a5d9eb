"""Random weights in MXFP4 and block-wise FP8, with what they read as."""

from __future__ import annotations

import torch
from torch import Tensor

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""Magnitudes of a four-bit float; the fourth bit is the sign."""
MX_BLOCK, FP8_BLOCK = 32, 16


def mxfp4(rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """(blocks uint8 [R, C/32, 16], scales uint8 [R, C/32], the weights that these are [R, C])."""
    code_RGI = torch.randint(16, (rows, columns // MX_BLOCK, MX_BLOCK), dtype=torch.uint8)
    scale_RG = torch.randint(122, 126, code_RGI.shape[:2], dtype=torch.uint8)
    value_RGI = E2M1[(code_RGI % 8).long()] * torch.where(code_RGI < 8, 1.0, -1.0)
    read_RC = (value_RGI * 2.0 ** (scale_RG[..., None].float() - 127)).reshape(rows, columns)
    return code_RGI[..., ::2] | code_RGI[..., 1::2] << 4, scale_RG, read_RC


def fp8(rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """(float8 [R, C], scales float32 [R/16, C/16], the weights that these are [R, C])."""
    stored_RC = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    scales = torch.rand(rows // FP8_BLOCK, columns // FP8_BLOCK) / 4
    return stored_RC, scales, stored_RC.float() * torch.kron(scales, torch.ones(FP8_BLOCK, FP8_BLOCK))
