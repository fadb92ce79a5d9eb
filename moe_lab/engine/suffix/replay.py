"""Suffix replay: prompts with some tokens under other routings; what these cannot change is computed once.

A prompt is read by the plain model. Two things are cached: keys and values of the tokens before the first re-routed
one, and hidden states of the other tokens in front of the fork layer. A pass is then the suffixes of N prompts through
the later layers, with gradients to the routing if it requires them.

N = prompts of a pass, Q = tokens of one suffix, S = the most of these, T = cached slots, M = logit positions of all
suffixes, D = hidden size, E = experts, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from moe_lab.engine.forward.batch import TokenTree
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.layers import runs_on_kv_cache
from moe_lab.engine.forward.masks import LayerMasks
from moe_lab.engine.forward.prefixes import group_by_prefix
from moe_lab.engine.forward.suffix_forward import SuffixBatch, SuffixForward
from moe_lab.engine.scoring.scoring import Budget, ScoringRequest, batches
from moe_lab.engine.scoring.token_scores import Scores, read_scores
from moe_lab.engine.suffix.attention import SuffixLayer, suffix_attention
from moe_lab.engine.suffix.recorder import PromptSuffix, SuffixRecorder
from moe_lab.engine.suffix.token_span import TokenSpan
from moe_lab.errors import ConfigError
from moe_lab.routing.remix import Remix


class SuffixReplay:
    """Reads prompts by the plain model, then runs their suffixes through the later layers.

    Args:
        first_moe: the first MoE layer whose routing may be changed. Its decoder layer is the fork layer.
        span: the re-routed tokens of a prompt.

    Raises ConfigError for models that keep more than keys and values.
    """

    def __init__(self, model: nn.Module, first_moe: int, span: TokenSpan | None = None):
        if not runs_on_kv_cache(model):
            raise ConfigError(
                f"{type(model).__name__} keeps more than keys and values, or counts positions by them: the pathway of "
                "single tokens cannot be changed.\nmethod=base and method=roe run it."
            )
        self.model = model
        self.span = span or TokenSpan()
        self.recorder = SuffixRecorder(model, first_moe, self.span)
        self.forward = SuffixForward(model, first_moe)

    @property
    def tokens_in(self) -> int:
        """Tokens put through the model so far, padding excluded; those of a replay pass the later layers only."""
        return self.recorder.tokens_in + self.forward.tokens_in

    def read(
        self,
        prompts: Sequence[Sequence[int]],
        budget: Budget,
        continuations: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> list[PromptSuffix]:
        """The suffix of each prompt (token ids). A prefix that prompts share is read once.

        Args:
            continuations: of each prompt, to be scored; None: one token of each.

        Raises ValueError for a prompt with fewer tokens than the span.
        """
        requests = [
            ScoringRequest(prompt, continuations[i] if continuations else [[0]], noise_key=0)
            for i, prompt in enumerate(prompts)
        ]
        suffixes: dict[int, PromptSuffix] = {}
        for group in group_by_prefix([prompt[: self.span.start(len(prompt)) + 1] for prompt in prompts]):
            with self.recorder as recorder:
                for batch in batches(recorder, requests, group, budget):
                    for _ in batch.passes(recorder, budget):
                        pass
                    read = recorder.suffixes([requests[i] for i in batch.indices], batch.cache, group.shared)
                    suffixes.update(zip(batch.indices, read, strict=True))
        return [suffixes[i] for i in range(len(prompts))]

    def batch(self, suffixes: Sequence[PromptSuffix]) -> SuffixBatch:
        """Suffixes as one batch with joined prefixes, for several calls of `logits`."""
        prefixes = [suffix.prefix for suffix in suffixes]
        trees = [suffix.tree for suffix in suffixes]
        device = self.forward.device
        T, S = max(prefix.length for prefix in prefixes), max(map(len, trees))
        visible = torch.stack(
            [_visible(tree, prefix.length, T, S) for tree, prefix in zip(trees, prefixes, strict=True)]
        )
        positions = [tree.positions + [0] * (S - len(tree)) for tree in trees]
        hidden = [nn.functional.pad(suffix.hidden_QD, (0, 0, 0, S - len(suffix.tree))) for suffix in suffixes]
        return SuffixBatch(
            hidden_BSD=torch.stack(hidden),
            position_BS=torch.tensor(positions, device=device),
            masks=LayerMasks(visible.to(device), self.model.dtype),
            layers=[
                SuffixLayer.of(list(parts), T, S)
                for parts in zip(*(prefix.layers for prefix in prefixes), strict=True)
            ],
            logits_at=torch.tensor(
                [i * S + node for i, tree in enumerate(trees) for node in tree.logit_nodes], device=device
            ),
            count=sum(map(len, trees)),
        )

    def logits(self, suffixes: Sequence[PromptSuffix] | SuffixBatch, remix: Remix | None) -> Tensor:
        """float32 [M, V] (float64 for a float64 model): next-token logits at the logit positions of each suffix, which
        are the prompt's last token and all tokens but the last of its continuations.

        `remix` routes the re-routed tokens. Other tokens are routed as usual, and attend to the changed keys and
        values. The logits are differentiable in the probabilities of `remix` if these require gradients. None: the
        plain model.

        Raises ValueError for a `remix` of layers before `first_moe`.
        """
        batch = suffixes if isinstance(suffixes, SuffixBatch) else self.batch(suffixes)
        first_moe = self.forward.first_moe
        if remix and min(remix.probs) < first_moe:
            raise ValueError(
                f"MoE layer {min(remix.probs)} is re-routed, but activations are kept from {first_moe} on."
            )
        needs_grad = bool(remix and remix.needs_grad)
        with (
            torch.set_grad_enabled(needs_grad),
            _constant(self.model),
            suffix_attention(batch.layers),
            self.forward.routed(remix),
        ):
            logits_MV = self.forward(batch)
        return logits_MV.to(torch.promote_types(logits_MV.dtype, torch.float32))

    def score(self, suffixes: Sequence[PromptSuffix], *routings: Remix | None) -> list[Scores]:
        """Scores of the continuations that each prompt was read with.

        Args:
            routings: averaged in their probabilities; None: the plain model.
        """
        batch = self.batch(suffixes)
        with torch.no_grad():
            logits_MnV = torch.stack([self.logits(batch, remix) for remix in routings], dim=1)
        return read_scores(Ensemble(n=len(routings)), [suffix.tree for suffix in suffixes], [logits_MnV])


def _visible(tree: TokenTree, prefix: int, T: int, S: int) -> Tensor:
    """bool [S, T + S]: the slots of the prefix, which end at T, then those tokens of the tree that each attends to."""
    own = nn.functional.pad(torch.from_numpy(tree.visible), (0, S - len(tree), 0, S - len(tree)))
    before = (torch.arange(T) >= T - prefix).expand(S, -1)
    return torch.cat([before, own], dim=-1)


@contextmanager
def _constant(model: nn.Module) -> Iterator[None]:
    """Inside the context no parameter requires gradients."""
    asking = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in asking:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in asking:
            parameter.requires_grad_(True)
