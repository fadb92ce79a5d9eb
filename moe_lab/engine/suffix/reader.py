"""What the untouched model makes of prompts, as far as their tails need it under other routings.

A tail is a prompt from the first of its W re-routed tokens on, with the continuations that hang off its end.

B = sequences, S = new tokens of each, Q = tokens of one tail, W = re-routed tokens, D = hidden size, E = experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from moe_lab.engine.forward.batch import Tokens, TreeRow
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import RowForward
from moe_lab.engine.forward.kv_cache import RowCache
from moe_lab.engine.forward.layers import decoder_layers, layer_inputs, parting_layer
from moe_lab.engine.scoring.scoring import Question
from moe_lab.engine.suffix.token_span import TokenSpan
from moe_lab.routing import Router, Routing, routed
from moe_lab.routing.remix import router_probs


@dataclass(frozen=True)
class PromptTail:
    """What the untouched model computed for one prompt, as far as its tail needs it."""

    prompt: tuple[int, ...]
    """Its token ids."""
    past: RowCache
    """Keys and values of the prompt's tokens before the tail, of the layers from the parting one on."""
    hidden_QD: Tensor
    """Hidden states of the tail's tokens as the parting decoder layer takes them."""
    pathway_WME: Tensor
    """float32 [W, MoE layers, E] on the CPU: the router's probabilities at the re-routed tokens."""
    mean_D: Tensor
    """float32 on the CPU: mean over the prompt's tokens of what the output head is given."""
    tree: TreeRow
    """The tail's tokens: the prompt's, and the continuations' that hang off it."""

    @property
    def position(self) -> int:
        """Index of the first re-routed token in its prompt."""
        return self.tree.positions[0]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.past, self.hidden_QD, self.pathway_WME, self.mean_D))


class PromptTailReader(RowForward):
    """The plain model, which notes what tails need.

    Args:
        first: the first MoE layer whose routing may be changed.
    """

    def __init__(self, model: nn.Module, first: int, span: TokenSpan):
        super().__init__(model, Ensemble())
        self.first, _ = parting_layer(model, first)
        self.span = span

    def __enter__(self) -> PromptTailReader:
        super().__enter__()
        self._hidden: list[Tensor] = []
        self._final: list[Tensor] = []
        self._shared: list[Tensor] = []
        self._logits: dict[Router, list[Tensor]] = {}
        layer = decoder_layers(self.model)[self.first]
        self._stack.callback(layer.register_forward_pre_hook(self._note_hidden, with_kwargs=True).remove)
        self._stack.enter_context(routed(self.model, self._note_logits))
        return self

    def __call__(
        self, tokens: Tokens, cache: RowCache, counted: int | None = None, noise: bool = True
    ) -> Tensor:
        """As `RowForward`; a beginning that prompts share, which is read with `noise=False`, is no part of a tail."""
        self._noted = tokens.ids_BS.shape if noise else None
        return super().__call__(tokens, cache, counted, noise)

    def _note_hidden(self, layer: nn.Module, args: tuple, kwargs: dict) -> None:
        if self._noted:
            self._hidden.append(layer_inputs(layer, args, kwargs)["hidden_states"])

    def _note_logits(self, router: Router, routing: Routing) -> None:
        if self._noted:
            self._logits.setdefault(router, []).append(routing.logits_TE.unflatten(0, self._noted))

    def _select(self, head: nn.Module, args: tuple) -> tuple:
        (self._final if self._noted else self._shared).append(args[0])
        return super()._select(head, args)

    def tails(self, questions: list[Question], cache: RowCache, shared: int) -> list[PromptTail]:
        """Of a batch whose passes have just been made, behind `shared` tokens."""
        hidden_BSD = torch.cat(self._hidden, dim=1)
        logits = {router: torch.cat(parts, dim=1) for router, parts in self._logits.items()}
        final_BSD = torch.cat(self._final, dim=1)
        self._hidden, self._final, self._logits = [], [], {}
        found = []
        for b, question in enumerate(questions):
            start = self.span.start(len(question.context))
            tree = TreeRow(question.context, question.continuations, cached=start)
            at, W = start - shared, self.span.size
            probs = [
                router_probs(router, logits[router][b, at : at + W].to(self.device))
                for router in sorted(logits, key=lambda router: router.layer)
            ]
            found.append(
                PromptTail(
                    prompt=tuple(question.context),
                    past=cache.taken(b, start, self.first),
                    hidden_QD=hidden_BSD[b, at : at + len(tree)].clone(),
                    pathway_WME=torch.stack(probs, dim=1).cpu(),
                    mean_D=self._mean(final_BSD[b, : len(question.context) - shared]),
                    tree=tree,
                )
            )
        return found

    def _mean(self, own_SD: Tensor) -> Tensor:
        """float32 [D]: over a prompt's own tokens and those that it shares."""
        parts = [own_SD, *(shared_BSD[0] for shared_BSD in self._shared)]
        return (sum(part_SD.float().sum(dim=0) for part_SD in parts) / sum(map(len, parts))).cpu()
