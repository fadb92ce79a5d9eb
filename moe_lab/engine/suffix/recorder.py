"""Prompts read by the plain model, with the activations that a replay of their suffixes takes.

A suffix is a prompt from the first of its W re-routed tokens on, with the continuations that branch off its end.

B = sequences, S = new tokens of each, Q = tokens of one suffix, W = re-routed tokens, D = hidden size, E = experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from moe_lab.engine.forward.batch import TokenTree
from moe_lab.engine.forward.forward import RecordingForward
from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.engine.scoring.scoring import ScoringRequest
from moe_lab.engine.suffix.token_span import TokenSpan
from moe_lab.routing import Router, Routing, routed
from moe_lab.routing.remix import router_probs


@dataclass(frozen=True)
class PromptSuffix:
    """Activations of the plain model for one prompt and its suffix."""

    prompt: tuple[int, ...]
    """Its token ids."""
    prefix: KVCache
    """Keys and values of the prompt's tokens before the suffix, of the layers from the fork layer on."""
    hidden_QD: Tensor
    """Hidden states of the suffix's tokens as the fork layer takes them."""
    pathway_WME: Tensor
    """float32 [W, MoE layers, E] on the CPU: the router's probabilities at the re-routed tokens."""
    mean_D: Tensor
    """float32 on the CPU: mean final hidden state of the prompt's tokens."""
    tree: TokenTree
    """The suffix's tokens: the prompt's, and those of the continuations that branch off it."""

    @property
    def position(self) -> int:
        """Index of the first re-routed token in its prompt."""
        return self.tree.positions[0]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.prefix, self.hidden_QD, self.pathway_WME, self.mean_D))


class SuffixRecorder(RecordingForward):
    """The plain model, recording suffixes. Its hidden states are those of all tokens, [B, S, hidden].

    Args:
        first_moe: the first MoE layer whose routing may be changed.
        span: the re-routed tokens of a prompt.
    """

    def __init__(self, model: nn.Module, first_moe: int, span: TokenSpan):
        super().__init__(model, first_moe)
        self.span = span

    def __enter__(self) -> SuffixRecorder:
        super().__enter__()
        self._shared: list[Tensor] = []
        self._logits: dict[Router, list[Tensor]] = {}
        self._stack.enter_context(routed(self.model, self._record_logits))
        return self

    def _record_logits(self, router: Router, routing: Routing) -> None:
        if self._recording:
            self._logits.setdefault(router, []).append(routing.logits_TE)

    def _select(self, head: nn.Module, args: tuple) -> tuple:
        if not self._recording:
            self._shared.append(args[0])
        return super()._select(head, args)

    def _chosen(self, hidden_BSD: Tensor) -> Tensor:
        return hidden_BSD

    def suffixes(self, requests: list[ScoringRequest], cache: KVCache, shared: int) -> list[PromptSuffix]:
        """The suffixes of a batch, after its passes; `shared` tokens of each prompt are a shared prefix."""
        hidden_BSD, final_BSD = self.recorded()
        B = len(requests)
        logits = {
            router: torch.cat([part.unflatten(0, (B, -1)) for part in parts], dim=1)
            for router, parts in self._logits.items()
        }
        self._logits = {}
        found = []
        for b, request in enumerate(requests):
            start = self.span.start(len(request.context))
            tree = TokenTree(request.context, request.continuations, cached=start)
            at, W = start - shared, self.span.size
            probs = [
                router_probs(router, logits[router][b, at : at + W].to(self.device))
                for router in sorted(logits, key=lambda router: router.layer)
            ]
            found.append(
                PromptSuffix(
                    prompt=tuple(request.context),
                    prefix=cache.taken(b, start, self.fork),
                    hidden_QD=hidden_BSD[b, at : at + len(tree)].clone(),
                    pathway_WME=torch.stack(probs, dim=1).cpu(),
                    mean_D=self._mean(final_BSD[b, : len(request.context) - shared]),
                    tree=tree,
                )
            )
        return found

    def _mean(self, own_SD: Tensor) -> Tensor:
        """float32 [D]: mean over a prompt's own tokens and those of the shared prefix."""
        parts = [own_SD, *(shared_BSD[0] for shared_BSD in self._shared)]
        return (sum(part_SD.float().sum(dim=0) for part_SD in parts) / sum(map(len, parts))).cpu()
