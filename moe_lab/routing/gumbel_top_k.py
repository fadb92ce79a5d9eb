"""Gumbel-top-k routing (RoE, equation 1): the k experts with the largest `scores + temperature * noise`.

Scores are the router's logits, or its sigmoids plus a bias (DeepSeek-V3 and similar). With `margin_scaled` they are
`scores + temperature * margin * noise`.

T = tokens, N = noisy tokens among them, L = noisy layers, E = experts, K = experts per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moe_lab.errors import RoutingError
from moe_lab.routing.hook import Router, Routing
from moe_lab.routing.nesting import require_choice_by_logits
from moe_lab.routing.noise import gumbel_for_tokens


@dataclass(frozen=True)
class NoisyTokens:
    """The tokens of the next forward pass that are routed with noise, and the keys of their noise. All int64 [N]."""

    index: Tensor
    """Indices among the T tokens of the pass."""
    document: Tensor
    repeat: Tensor
    row: Tensor
    position: Tensor


class GumbelTopK:
    """A policy: the tokens given to `expect` choose their experts with noise. Other tokens are not changed.

    Args:
        temperatures: one per MoE layer; 0: no noise.
        seed: key of the noise.
        perturbed_weights: compute combine weights from the noisy logits instead of the clean ones; for families with
            `chooses_by_logits`.
        antithetic: rows 2j-1 and 2j have antithetic noise (`gumbel`).
        margin_scaled: each token's temperature is multiplied by `choice_margin` in each layer. Its unit is then what it
            takes to change the choice: the best expert not chosen passes the last chosen one with probability
            1 / (1 + exp(1 / temperature)).

    Raises RoutingError in a pass before the first `expect`. `moe_lab.RoE` runs a model with this policy.
    """

    def __init__(
        self,
        temperatures: Sequence[float],
        seed: int,
        perturbed_weights: bool = False,
        *,
        antithetic: bool = False,
        margin_scaled: bool = False,
    ):
        self.temperatures = list(temperatures)
        self.seed = seed
        self.perturbed_weights = perturbed_weights
        self.antithetic = antithetic
        self.margin_scaled = margin_scaled
        self._noisy_layers = [layer for layer, temperature in enumerate(temperatures) if temperature > 0]
        self._told = False
        self._tokens: NoisyTokens | None = None
        self._noise_LNE: Tensor | None = None
        self._changed: dict[torch.device, Tensor | int] = {}
        self._decided = 0

    def expect(self, tokens: NoisyTokens | None) -> None:
        """Set the noisy tokens of the next forward pass; None: no token."""
        self._told, self._tokens, self._noise_LNE = True, tokens, None
        if tokens is not None:
            self._decided += len(tokens.index) * len(self._noisy_layers)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that make an equal policy, which has decided nothing yet."""
        return {
            "temperatures": self.temperatures,
            "seed": self.seed,
            "perturbed_weights": self.perturbed_weights,
            "antithetic": self.antithetic,
            "margin_scaled": self.margin_scaled,
        }

    @property
    def decisions(self) -> tuple[int, int]:
        """(noisy decisions with another set of experts than the clean one, all noisy decisions) so far.

        A decision is one token of one sample in one layer with a temperature above 0.
        """
        return sum(int(count) for count in self._changed.values()), self._decided

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        if not self._told:
            raise RoutingError(
                "GumbelTopK was told of no token, so it would change nothing. Call `expect` before each pass; "
                "moe_lab.RoE(model, tokenizer) does."
            )
        temperature = self.temperatures[router.layer]
        if self._tokens is None or temperature == 0:
            return None
        require_choice_by_logits(router, "RoE adds noise to")
        device = routing.logits_TE.device  # layers may be on several devices
        chosen = self._tokens.index.to(device)
        logits_NE = routing.logits_TE[chosen]
        noise_NE = self._noise(router.layer, logits_NE.shape[-1]).to(device)
        scores_NE = router.scores(logits_NE)
        if self.margin_scaled:
            noise_NE = choice_margin(scores_NE, routing.index_TK[chosen])[:, None] * noise_NE
        noisy_NE = scores_NE + temperature * noise_NE
        index_NK = router.choose(noisy_NE, routing.index_TK.shape[-1])
        source_NE = logits_NE
        if self.perturbed_weights:
            source_NE = router.family.rule.logits(noisy_NE).to(logits_NE.dtype)
        weights_NK = router.weights(source_NE, index_NK)
        self._count(index_NK, routing.index_TK[chosen])
        return Routing(
            routing.logits_TE,
            routing.weights_TK.index_copy(0, chosen, weights_NK.to(routing.weights_TK.dtype)),
            routing.index_TK.index_copy(0, chosen, index_NK),
        )

    def _noise(self, layer: int, n_experts: int) -> Tensor:
        """float32 [N, E]. The noise of all noisy layers is computed at once, for the first of them."""
        if self._noise_LNE is None:
            t = self._tokens
            assert t is not None
            layer_L = torch.tensor(self._noisy_layers, device=t.index.device)
            self._noise_LNE = gumbel_for_tokens(
                self.seed, t.document, t.repeat, t.row, t.position, layer_L, n_experts, self.antithetic
            )
        return self._noise_LNE[self._noisy_layers.index(layer)]

    def _count(self, index_NK: Tensor, clean_NK: Tensor) -> None:
        differs_N = (index_NK.sort(dim=-1).values != clean_NK.sort(dim=-1).values).any(dim=-1)
        device = index_NK.device
        self._changed[device] = self._changed.get(device, 0) + differs_N.sum()


def choice_margin(scores_NE: Tensor, index_NK: Tensor) -> Tensor:
    """float32 [N]: the difference of the last chosen expert's score and the best score that was not chosen.

    It is absolute: where routers choose within groups, an expert of another group may have the higher score. It is 0
    where all experts are chosen.
    """
    last_N = scores_NE.gather(-1, index_NK).amin(dim=-1)
    best_other_N = scores_NE.scatter(-1, index_NK, -torch.inf).amax(dim=-1)
    margin_N = (last_N - best_other_N).abs()
    return margin_N.masked_fill(margin_N.isinf(), 0.0)
