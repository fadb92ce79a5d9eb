"""`moe_lab.compare_routes`: how far an engine's experts differ from those of transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moe_lab.config.progress import Progress
from moe_lab.errors import RoutingError
from moe_lab.metrics.teacher_forcing import evaluating
from moe_lab.routing.passes import transformers_model
from moe_lab.routing.record import record
from moe_lab.routing.replay import check_routes, replay
from moe_lab.routing.routes import Routes


@dataclass(frozen=True)
class ComparedRoutes:
    """How far routes differ from those of the model."""

    tokens: int
    """Tokens of the routes."""
    differing: list[float]
    """Per MoE layer the share of tokens that have other experts, in any order."""
    log_probabilities: Tensor
    """float64 [M]: of the M tokens after the first one of each text, the log-probability without
    replay, in nats."""
    replayed: Tensor
    """float64 [M]: with replay."""

    @property
    def mean_difference(self) -> float:
        """The mean absolute difference of log-probabilities with and without replay, in nats."""
        return float((self.replayed - self.log_probabilities).abs().mean())

    def __str__(self) -> str:
        lines = [f"{'MoE layer':>9}  tokens with other experts"]
        for layer, share in enumerate(self.differing):
            lines.append(f"{layer:>9}  {share:.2%}")
        difference = (self.replayed - self.log_probabilities).abs()
        lines.append(
            f"log-probabilities with and without replay, {len(difference):,} tokens: they differ "
            f"by {difference.mean():.3g} nats on average, by {difference.max():.3g} at most"
        )
        return "\n".join(lines)


@torch.no_grad()
def compare_routes(model: Any, routes: Routes) -> ComparedRoutes:
    """Compare the routes of an engine with those of the model, on the texts of the routes.

        routes = Routes.from_vllm(output, model)
        print(compare_routes(model, routes))

    The model reads every text twice: as it is, and with the experts of the routes.

    Raises ModelError and RoutingError as `replay` does.
    """
    check_routes(routes, model)
    if len(routes) < 2:
        raise RoutingError("compare_routes needs routes of a text with two tokens or more.")
    given = routes.indices
    differing = torch.zeros(len(given), dtype=torch.long)
    plain = []
    replayed = []
    numbers = routes.sequences.unique().tolist()
    device = transformers_model(model).device
    with evaluating(model), Progress(len(numbers), "compare_routes", "text") as progress:
        for number in numbers:
            row_N = (routes.sequences == number).nonzero()[:, 0]
            ids = routes.token_ids[row_N][None].to(device)
            with record(model) as recorded:
                plain.append(_log_probabilities(model, ids))
            of_text = [index_NK[row_N] for index_NK in given]
            for layer, (own, other) in enumerate(zip(recorded.indices, of_text, strict=True)):
                differing[layer] += _count_differing(own.cpu(), other)
            alone = Routes(routes.token_ids[row_N], of_text)
            with replay(model, alone):
                replayed.append(_log_probabilities(model, ids))
            progress.update()
    return ComparedRoutes(
        tokens=len(routes),
        differing=(differing / len(routes)).tolist(),
        log_probabilities=torch.cat(plain),
        replayed=torch.cat(replayed),
    )


def _log_probabilities(model: Any, ids: Tensor) -> Tensor:
    """float64 [S - 1]: the log-probability of each token of a text [1, S] but the first."""
    logits_SV = model(ids, use_cache=False).logits[0, :-1].double().cpu()
    return logits_SV.log_softmax(-1).gather(-1, ids[0, 1:, None].cpu())[:, 0]


def _count_differing(own_NK: Tensor, other_NK: Tensor) -> int:
    """The number of tokens with other experts."""
    if own_NK.shape != other_NK.shape:
        return len(own_NK)
    return int((own_NK.sort(-1).values != other_NK.sort(-1).values).any(-1).sum())
