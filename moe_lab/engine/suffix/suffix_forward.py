"""Prompts with some of their tokens under other routings: everything that these cannot change is computed once.

A prompt is read clean. Of that, what its tail (the prompt from the first re-routed token on, and its continuations)
needs from the first re-routed layer on is kept: keys and values of the tokens before it, and its hidden states. A pass
is then the tails of N prompts through the later layers, with gradients to the routing if these are asked for.

N = prompts of a pass, Q = tokens of one tail, S = the most of these, T = kept columns, M = wanted tokens of all tails,
D = hidden size, E = experts, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from moe_lab.engine.forward.batch import TreeRow
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.kv_cache import RowLayer
from moe_lab.engine.forward.layers import only_layers_from, parting_layer, runs_rows
from moe_lab.engine.forward.masks import FULL, LayerMasks, ReachHooks
from moe_lab.engine.forward.prefixes import group_by_prefix
from moe_lab.engine.scoring.scoring import Budget, Question, Scores, batches, read_scores
from moe_lab.engine.suffix.attention import TailLayer, tail_attention
from moe_lab.engine.suffix.reader import PromptTail, PromptTailReader
from moe_lab.engine.suffix.token_span import TokenSpan
from moe_lab.errors import ConfigError
from moe_lab.routing import routed
from moe_lab.routing.remix import Remix


class PromptTails:
    """Reads prompts clean, then passes their tails through the later layers.

    Args:
        first: the first MoE layer whose routing may be changed; pasts of earlier ones are not kept.
        span: which tokens of a prompt may be re-routed.

    Raises ConfigError for models that keep more than keys and values.
    """

    def __init__(self, model: nn.Module, first: int, span: TokenSpan | None = None):
        if not runs_rows(model):
            raise ConfigError(
                f"{type(model).__name__} keeps more than keys and values, or counts positions by them: the pathway of "
                "single tokens cannot be changed.\nmethod=base and method=roe run it."
            )
        self.model = model
        self.span = span or TokenSpan()
        self.clean = PromptTailReader(model, first, self.span)
        self.first, router = parting_layer(model, first)
        self.first_moe = router.layer
        self.device = self.clean.device
        self.reaches = ReachHooks(model)
        self._passed = 0

    @property
    def tokens_in(self) -> int:
        """Tokens put through the model so far, padding excluded; those of passes go through the later layers only."""
        return self.clean.tokens_in + self._passed

    def read(
        self,
        prompts: Sequence[Sequence[int]],
        budget: Budget,
        continuations: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> list[PromptTail]:
        """What is kept of each prompt (token ids); what prompts begin with in common before their tails is read once.

        Args:
            continuations: of each prompt, those whose tokens are to be predicted; None: one token of each.

        Raises ValueError for a prompt with fewer tokens than are to be re-routed.
        """
        asked = [
            Question(prompt, continuations[i] if continuations else [[0]], document=0)
            for i, prompt in enumerate(prompts)
        ]
        found: dict[int, PromptTail] = {}
        for group in group_by_prefix([prompt[: self.span.start(len(prompt)) + 1] for prompt in prompts]):
            with self.clean:
                for batch in batches(self.clean, asked, group, budget):
                    for _ in batch.passes(self.clean, budget):
                        pass
                    read = self.clean.tails([asked[i] for i in batch.indices], batch.cache, group.shared)
                    found.update(zip(batch.indices, read, strict=True))
        return [found[i] for i in range(len(prompts))]

    def batch(self, tails: Sequence[PromptTail]) -> Batch:
        """Tails of one pass, their pasts joined; for `logits` more than once of the same tails."""
        pasts = [tail.past for tail in tails]
        trees = [tail.tree for tail in tails]
        T, S = max(past.length for past in pasts), max(map(len, trees))
        visible = torch.stack(
            [_visible(tree, past.length, T, S) for tree, past in zip(trees, pasts, strict=True)]
        )
        positions = [tree.positions + [0] * (S - len(tree)) for tree in trees]
        hidden = [nn.functional.pad(tail.hidden_QD, (0, 0, 0, S - len(tail.tree))) for tail in tails]
        return Batch(
            layers=[
                TailLayer.of(list(parts), T, S)
                for parts in zip(*(past.layers for past in pasts), strict=True)
            ],
            hidden_NSD=torch.stack(hidden),
            position_NS=torch.tensor(positions, device=self.device),
            masks=LayerMasks(visible.to(self.device), self.model.dtype),
            wanted_M=torch.tensor(
                [i * S + node for i, tree in enumerate(trees) for node in tree.wanted], device=self.device
            ),
            count=sum(map(len, trees)),
        )

    def logits(self, tails: Sequence[PromptTail] | Batch, remix: Remix | None) -> Tensor:
        """float32 [M, V], float64 for a model that is: what the model predicts after the wanted tokens of each tail,
        which are the prompt's last and those of its continuations that are not their last.

        The other tokens of a tail are routed as usual, and read the changed keys and values of the re-routed ones.
        Differentiable in the probabilities of `remix` where these ask for gradients. None: the untouched model.
        """
        batch = tails if isinstance(tails, Batch) else self.batch(tails)
        return self._pass(batch, remix)

    def score(self, tails: Sequence[PromptTail], *rows: Remix | None) -> list[Scores]:
        """Log-likelihood, and whether greedy decoding gives it, of the continuations that each prompt was read with.

        Args:
            rows: the routings whose probabilities are averaged; None: the untouched model's.
        """
        batch = self.batch(tails)
        with torch.no_grad():
            logits_MnV = torch.stack([self._pass(batch, remix) for remix in rows], dim=1)
        return read_scores(Ensemble(n=len(rows)), [tail.tree for tail in tails], [logits_MnV])

    def _pass(self, batch: Batch, remix: Remix | None) -> Tensor:
        """[M, V]"""
        if remix and min(remix.probs) < self.first_moe:
            raise ValueError(
                f"MoE layer {min(remix.probs)} is re-routed, but work is kept from {self.first_moe} on."
            )
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(bool(remix and remix.needs_grad)))
            stack.enter_context(_constant(self.model))
            stack.enter_context(only_layers_from(self.model, self.first, lambda: batch.hidden_NSD))
            stack.enter_context(tail_attention(batch.layers))
            if remix:
                stack.enter_context(routed(self.model, remix, self.first_moe))
            self.reaches.install(stack)
            self.reaches.expect(batch.masks)
            head = self.model.get_output_embeddings()
            stack.callback(head.register_forward_pre_hook(batch.select).remove)
            logits_MV = self.model(
                inputs_embeds=batch.hidden_NSD,
                attention_mask=batch.masks.of(FULL),
                position_ids=batch.position_NS,
                past_key_values=Cache(layers=batch.layers),
                use_cache=True,
            ).logits[0]
        self._passed += batch.count
        return logits_MV.to(torch.promote_types(logits_MV.dtype, torch.float32))


@dataclass(frozen=True)
class Batch:
    """Tails that go through the later layers together."""

    layers: list[RowLayer]
    hidden_NSD: Tensor
    position_NS: Tensor
    masks: LayerMasks
    wanted_M: Tensor
    """Flat indices into N x S."""
    count: int
    """Tokens that are no padding."""

    def select(self, head: nn.Module, args: tuple) -> tuple:
        """The output head's input, [N, S, D] -> [1, M, D]."""
        return (args[0].flatten(0, 1)[self.wanted_M.to(args[0].device)][None], *args[1:])


def _visible(tree: TreeRow, past: int, T: int, S: int) -> Tensor:
    """bool [S, T + S]: the prompt's columns, which end at T, then those tokens of the tree that each sees."""
    own = nn.functional.pad(torch.from_numpy(tree.visible), (0, S - len(tree), 0, S - len(tree)))
    before = (torch.arange(T) >= T - past).expand(S, -1)
    return torch.cat([before, own], dim=-1)


@contextmanager
def _constant(model: nn.Module) -> Iterator[None]:
    """Inside the context no parameter asks for gradients."""
    asking = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in asking:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in asking:
            parameter.requires_grad_(True)
