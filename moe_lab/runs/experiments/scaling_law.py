"""Kaplan et al. (2020), "Scaling Laws for Neural Language Models", equation 1.1: loss as a function of model size.

L(N) = (N_c / N)^alpha_N, with alpha_N = 0.076 and N_c = 8.8e13: N counts parameters without the embeddings, L is the
cross-entropy in nats per token. The ratio of two sizes needs neither N_c nor the number of tokens: both cancel.
"""

from __future__ import annotations

ALPHA_N = 0.076


def size_ratio(loss: float, base_loss: float) -> float:
    """How much larger the base model would have to be to reach `loss`: (base_loss / loss)^(1 / alpha_N).

    The two losses are of the same text, per token, per word or in sum.
    """
    return (base_loss / loss) ** (1 / ALPHA_N)
