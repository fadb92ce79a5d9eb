"""The regularizers of routers: those of MoE-Bench (appendix B.1.3), each of one layer,
without padding.

T = tokens of a pass, E = experts, K = experts per token, D = devices.
"""

import torch
from torch import Tensor


def balance_loss(logits_TE: Tensor, index_TK: Tensor) -> Tensor:
    """Sum over experts of f P (equation 2 without alpha).

    f_j is the share of tokens that chose expert j, P_j the mean of its softmax probability before
    the choice. The loss is K / E if both are uniform. transformers' loss has a factor E, and f and
    P over all layers together.
    """
    return (_chosen(logits_TE, index_TK) * _probability(logits_TE)).sum()


def z_loss(logits_TE: Tensor) -> Tensor:
    """Mean over tokens of the squared log-sum-exp of the logits (equation 3)."""
    return logits_TE.float().logsumexp(-1).square().mean()


def device_loss(logits_TE: Tensor, index_TK: Tensor, devices: int) -> Tensor:
    """DeepSeekMoE's device-level balance loss (Dai et al. 2024, equations 15-17, without alpha).

    Experts are in `devices` groups of equal size, in their order. The loss is the sum over groups
    of (mean of E/K f in the group) x (sum of P in the group), which is 1 if both are uniform.
    """
    experts = logits_TE.shape[-1]
    k = index_TK.shape[-1]
    chosen_D = (_chosen(logits_TE, index_TK) * experts / k).view(devices, -1).mean(-1)
    probability_D = _probability(logits_TE).view(devices, -1).sum(-1)
    return (chosen_D * probability_D).sum()


def load(index_TK: Tensor, experts: int) -> Tensor:
    """float32 [E]: how often each expert was chosen."""
    return torch.bincount(index_TK.reshape(-1), minlength=experts).float()


def _chosen(logits_TE: Tensor, index_TK: Tensor) -> Tensor:
    """[E]: the share of tokens that chose each expert (f)."""
    return load(index_TK, logits_TE.shape[-1]) / len(logits_TE)


def _probability(logits_TE: Tensor) -> Tensor:
    """[E]: the mean probability of each expert before the choice (P)."""
    return logits_TE.float().softmax(-1).mean(0)
