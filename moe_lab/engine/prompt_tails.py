"""The last tokens of prompts under other routings: everything that these cannot change is computed once.

A prompt is read clean. Of that, what its last token needs from the first re-routed layer on is kept: keys and values of
the tokens before it, and its hidden state. A pass is then one token of each of N prompts through the later layers, with
gradients to the routing if these are asked for.

N = prompts of a pass, M = tokens of one (the prompt's last and those of its continuations), S = the most of these,
T = kept columns, D = hidden size, E = experts, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from moe_lab.engine.cache import RowLayer
from moe_lab.engine.ensemble import Ensemble
from moe_lab.engine.layers import only_layers_from, parting_layer, runs_rows
from moe_lab.engine.masks import FULL, LayerMasks, ReachHooks
from moe_lab.engine.prefixes import group_by_prefix
from moe_lab.engine.prompt_tail_reading import PromptTail, PromptTailReader
from moe_lab.engine.scoring import Budget, Question, Scores, batches, read_scores
from moe_lab.engine.tokens import TreeRow
from moe_lab.errors import ConfigError
from moe_lab.routing import routed
from moe_lab.routing.remix import Remix


class PromptTails:
    """Reads prompts clean, then passes their last tokens through the later layers.

    Args:
        first: the first MoE layer whose routing may be changed; pasts of earlier ones are not kept.

    Raises ConfigError for models that keep more than keys and values.
    """

    def __init__(self, model: nn.Module, first: int):
        if not runs_rows(model):
            raise ConfigError(
                f"{type(model).__name__} keeps more than keys and values, or counts positions by them: the pathway of "
                "its last token cannot be changed alone.\nmethod=base and method=roe run it."
            )
        self.model = model
        self.clean = PromptTailReader(model, first)
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
        """What is kept of each prompt (token ids, at least one); what prompts begin with in common is read once.

        Args:
            continuations: of each prompt, those that `score` is to score.
        """
        asked = [
            Question(prompt, continuations[i] if continuations else [[0]], document=0)
            for i, prompt in enumerate(prompts)
        ]
        found: dict[int, PromptTail] = {}
        for group in group_by_prefix(prompts):
            with self.clean:
                for batch in batches(self.clean, asked, group, budget):
                    for _ in batch.passes(self.clean, budget):
                        pass
                    read = self.clean.tails([asked[i] for i in batch.indices], batch.cache)
                    found.update(zip(batch.indices, read, strict=True))
        return [found[i] for i in range(len(prompts))]

    def batch(self, tokens: Sequence[PromptTail], size: int = 1) -> Batch:
        """Tokens of one pass, their pasts joined; for `logits` more than once of the same tokens.

        Args:
            size: tokens of each: 1 for the prompts' last alone.
        """
        pasts = [token.past for token in tokens]
        T = max(past.length for past in pasts)
        visible = torch.stack([_visible(token.tree, token.past.length, T, size) for token in tokens])
        positions = [token.tree.positions[:size] for token in tokens]
        hidden = [token.hidden_MD[:size] for token in tokens]
        return Batch(
            layers=[_Past.of(list(parts), T) for parts in zip(*(past.layers for past in pasts), strict=True)],
            hidden_NSD=torch.stack([nn.functional.pad(rows, (0, 0, 0, size - len(rows))) for rows in hidden]),
            position_NS=torch.tensor([p + [0] * (size - len(p)) for p in positions], device=self.device),
            masks=LayerMasks(visible.to(self.device), self.model.dtype),
            count=sum(map(len, positions)),
        )

    def logits(self, tokens: Sequence[PromptTail] | Batch, remix: Remix | None) -> Tensor:
        """float32 [N, V]: what the model predicts after each last token; float64 for a model that is.

        Differentiable in the probabilities of `remix` where these ask for gradients. None: the untouched model.
        """
        batch = tokens if isinstance(tokens, Batch) else self.batch(tokens)
        return self._pass(batch, remix)[:, 0]

    def score(self, tokens: Sequence[PromptTail], remix: Remix | None) -> list[Scores]:
        """Log-likelihood, and whether greedy decoding gives it, of the continuations that each prompt was read with.

        Only the prompt's last token is re-routed. Continuations are routed as usual, and read its changed keys and
        values.
        """
        trees = [token.tree for token in tokens]
        with torch.no_grad():
            logits_NSV = self._pass(self.batch(tokens, max(map(len, trees))), remix)
        logits_MV = torch.cat([rows[: len(tree)] for rows, tree in zip(logits_NSV, trees, strict=True)])
        return read_scores(Ensemble(), trees, [logits_MV[:, None]])

    def _pass(self, batch: Batch, remix: Remix | None) -> Tensor:
        """[N, S, V]"""
        if remix and min(remix.probs) < self.first_moe:
            raise ValueError(
                f"MoE layer {min(remix.probs)} is re-routed, but work is kept from {self.first_moe} on."
            )
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(bool(remix and remix.needs_grad)))
            stack.enter_context(_constant(self.model))
            stack.enter_context(only_layers_from(self.model, self.first, lambda: batch.hidden_NSD))
            if remix:
                stack.enter_context(routed(self.model, remix, self.first_moe))
            self.reaches.install(stack)
            self.reaches.expect(batch.masks)
            logits_NSV = self.model(
                inputs_embeds=batch.hidden_NSD,
                attention_mask=batch.masks.of(FULL),
                position_ids=batch.position_NS,
                past_key_values=Cache(layers=batch.layers),
                use_cache=True,
            ).logits
        self._passed += batch.count
        return logits_NSV.to(torch.promote_types(logits_NSV.dtype, torch.float32))


@dataclass(frozen=True)
class Batch:
    """Tokens that go through the later layers together."""

    layers: list[RowLayer]
    hidden_NSD: Tensor
    position_NS: Tensor
    masks: LayerMasks
    count: int
    """Tokens that are no padding."""


class _Past(RowLayer):
    """One layer of joined pasts: new columns are put behind it without being kept, and gradients go through them."""

    @classmethod
    def of(cls, parts: list[RowLayer], width: int) -> _Past:
        past = cls(width)
        past.join(parts, width)
        return past

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """The past, and [N, H, S, D] behind it."""
        if not self.is_initialized:
            return key_states, value_states
        return torch.cat([self.keys, key_states], dim=-2), torch.cat([self.values, value_states], dim=-2)


def _visible(tree: TreeRow, past: int, T: int, size: int) -> Tensor:
    """bool [size, T + size]: the prompt's columns, which end at T, then those tokens of the tree that each sees."""
    own = torch.from_numpy(tree.visible[:size, :size])
    own = nn.functional.pad(own, (0, size - len(own), 0, size - len(own)))
    before = (torch.arange(T) >= T - past).expand(size, -1)
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
