"""Prompts with some tokens under other routings: recording, replay with gradients, and generation (C3PO).

The base model reads a prompt once. Two things are cached: keys and values of the tokens before the first re-routed one,
and hidden states of the other tokens in front of the fork layer. A suffix is a prompt from the first of its W re-routed
tokens on, with the continuations that branch off its end. A pass is then the suffixes of N prompts through the later
layers, with gradients to the routing if it requires them.

B = sequences, N = prompts of a pass, Q = tokens of one suffix, S = the most of these, T = cached slots, W = re-routed
tokens, M = logit positions of all suffixes, D = hidden size, E = experts, V = vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from moe_lab.engine.forward.batch import Tokens, TokenTree, group_by_prefix
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward, RecordingForward
from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.engine.forward.layers import LayerMasks, runs_on_kv_cache
from moe_lab.engine.forward.suffix_forward import SuffixBatch, SuffixForward
from moe_lab.engine.sampling import GenerationState
from moe_lab.engine.scoring import Budget, Scores, ScoringRequest, TokenScores, batches
from moe_lab.engine.suffix_attention import SuffixLayer, suffix_attention
from moe_lab.engine.token_span import TokenSpan
from moe_lab.errors import ConfigError
from moe_lab.routing import Router, Routing, routed
from moe_lab.routing.remix import Places, Remix, router_probs


@dataclass(frozen=True)
class PromptSuffix:
    """Activations of the base model for one prompt and its suffix."""

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
        return sum(
            part.nbytes for part in (self.prefix, self.hidden_QD, self.pathway_WME, self.mean_D)
        )


class SuffixRecorder(RecordingForward):
    """Runs the base model over whole prompts, [B, S, hidden], and records their suffixes.

    Args:
        first_moe: the first MoE layer whose routing may be changed.
        span: the re-routed tokens of a prompt.
    """

    def __init__(self, model: nn.Module, first_moe: int, span: TokenSpan):
        super().__init__(model, first_moe)
        self.span = span

    def __enter__(self) -> Self:
        super().__enter__()
        self._shared: list[Tensor] = []
        self._logits: dict[Router, list[Tensor]] = {}

        def record_logits(router: Router, routing: Routing) -> None:
            if self._recording:
                self._logits.setdefault(router, []).append(routing.logits_TE)

        self._stack.enter_context(routed(self.model, record_logits))
        return self

    def _select(self, head: nn.Module, args: tuple) -> tuple:
        if not self._recording:
            self._shared.append(args[0])
        return super()._select(head, args)

    def _chosen(self, hidden_BSD: Tensor) -> Tensor:
        return hidden_BSD

    def suffixes(
        self, requests: list[ScoringRequest], cache: KVCache, shared: int
    ) -> list[PromptSuffix]:
        """The suffixes of a batch, after its passes; `shared` tokens of each prompt are a shared prefix."""
        hidden_BSD, final_BSD = self.recorded()
        B = len(requests)
        logits = {
            router: torch.cat([part.unflatten(0, (B, -1)) for part in parts], dim=1)
            for router, parts in self._logits.items()
        }
        self._logits = {}
        starts = [self.span.start(len(request.context)) for request in requests]
        # the host reads the device once for all prompts of the batch
        pathway_BWME = self._pathways(logits, [start - shared for start in starts]).cpu()
        means = [
            self._mean(final_BSD[b, : len(request.context) - shared])
            for b, request in enumerate(requests)
        ]
        mean_BD = torch.stack(means).cpu()
        found = []
        for b, (request, start) in enumerate(zip(requests, starts, strict=True)):
            tree, at = (
                TokenTree(request.context, request.continuations, cached=start),
                start - shared,
            )
            found.append(
                PromptSuffix(
                    prompt=tuple(request.context),
                    prefix=cache.taken(b, start, self.fork),
                    hidden_QD=hidden_BSD[b, at : at + len(tree)].clone(),
                    pathway_WME=pathway_BWME[b],
                    mean_D=mean_BD[b],
                    tree=tree,
                )
            )
        return found

    def _pathways(self, logits: dict[Router, Tensor], starts: list[int]) -> Tensor:
        """[B, W, M, E]: the routers' probabilities at the span of each prompt; `starts` are its first tokens."""
        at_BW = torch.tensor(starts)[:, None] + torch.arange(self.span.size)
        row_B1 = torch.arange(len(starts))[:, None]
        probs = [
            router_probs(router, logits[router][row_B1, at_BW].flatten(0, 1).to(self.device))
            for router in sorted(logits, key=lambda router: router.layer)
        ]
        return torch.stack(probs, dim=1).unflatten(0, at_BW.shape)

    def _mean(self, own_SD: Tensor) -> Tensor:
        """float32 [D]: mean over a prompt's own tokens and those of the shared prefix."""
        parts = [own_SD, *(shared_BSD[0] for shared_BSD in self._shared)]
        total_D: Tensor = sum(part_SD.float().sum(dim=0) for part_SD in parts)  # type: ignore[assignment]
        return total_D / sum(map(len, parts))


class SuffixReplay:
    """Reads prompts with the base model, then runs their suffixes through the later layers.

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
        kinds = [self.recorder.rotary.kind(request.length) for request in requests]
        beginnings = [prompt[: self.span.start(len(prompt)) + 1] for prompt in prompts]
        for group in group_by_prefix(beginnings, kinds):
            with self.recorder as recorder:
                for batch in batches(recorder, requests, group, budget):
                    for _ in batch.passes(recorder, budget):
                        pass
                    read = recorder.suffixes(
                        [requests[i] for i in batch.indices], batch.cache, group.shared
                    )
                    suffixes.update(zip(batch.indices, read, strict=True))
        return [suffixes[i] for i in range(len(prompts))]

    def batch(self, suffixes: Sequence[PromptSuffix]) -> SuffixBatch:
        """Suffixes as one batch with joined prefixes, for several calls of `logits`."""
        prefixes = [suffix.prefix for suffix in suffixes]
        trees = [suffix.tree for suffix in suffixes]
        device = self.forward.device
        T, S = max(prefix.length for prefix in prefixes), max(map(len, trees))
        pairs = zip(trees, prefixes, strict=True)
        visible = torch.stack([_visible(tree, prefix.length, T, S) for tree, prefix in pairs])
        positions = [tree.positions + [0] * (S - len(tree)) for tree in trees]
        hidden = [
            nn.functional.pad(suffix.hidden_QD, (0, 0, 0, S - len(suffix.tree)))
            for suffix in suffixes
        ]
        return SuffixBatch(
            hidden_BSD=torch.stack(hidden),
            position_BS=torch.tensor(positions, device=device),
            masks=LayerMasks(visible.to(device), self.model.dtype),
            layers=[
                SuffixLayer(list(parts), T, S)
                for parts in zip(*(prefix.layers for prefix in prefixes), strict=True)
            ],
            logits_at=torch.tensor(
                [i * S + node for i, tree in enumerate(trees) for node in tree.logit_nodes],
                device=device,
            ),
            count=sum(map(len, trees)),
            lengths=[tree.length for tree in trees],
        )

    def logits(self, suffixes: Sequence[PromptSuffix] | SuffixBatch, remix: Remix | None) -> Tensor:
        """float32 [M, V] (float64 for a float64 model): next-token logits at the logit positions of each suffix, which
        are the prompt's last token and all tokens but the last of its continuations.

        `remix` routes the re-routed tokens. Other tokens are routed as usual, and attend to the changed keys and
        values. The logits are differentiable in the probabilities of `remix` if these require gradients. None: the
        plain model.
        """
        batch = suffixes if isinstance(suffixes, SuffixBatch) else self.batch(suffixes)
        needs_grad = bool(remix and remix.needs_grad)
        with (
            torch.set_grad_enabled(needs_grad),
            _constant(self.model),
            suffix_attention(self.model),
            self.forward.routed(remix),
        ):
            logits_MV = self.forward(batch)
        return logits_MV.to(torch.promote_types(logits_MV.dtype, torch.float32))

    def score(self, suffixes: Sequence[PromptSuffix], remix: Remix | None) -> list[Scores]:
        """Scores of the continuations that each prompt was read with; with None those of the base model."""
        with torch.no_grad():
            logits_M1V = self.logits(self.batch(suffixes), remix)[:, None]
        scores = TokenScores([suffix.tree for suffix in suffixes]).after(Ensemble(), [logits_M1V])
        return scores.summed()


def _visible(tree: TokenTree, prefix: int, T: int, S: int) -> Tensor:
    """bool [S, T + S]: the slots of the prefix, which end at T, then those tokens of the tree that each attends to."""
    own = nn.functional.pad(torch.from_numpy(tree.visible), (0, S - len(tree), 0, S - len(tree)))
    before = (torch.arange(T) >= T - prefix).expand(S, -1)
    return torch.cat([before, own], dim=-1)


@contextmanager
def _constant(model: nn.Module) -> Iterator[None]:
    """Inside the context no parameter requires gradients: only the routing is optimized."""
    asking = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in asking:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in asking:
            parameter.requires_grad_(True)


PERSISTENCE = ("prompt_last", "all_new", "decay")
"""Tokens that take a pathway: re-routed tokens of the prompt only; all new tokens too; or all new tokens, each mixed
with its own routing: the pathway's share is half of that of the token before."""
HALVED = 0.5


class ReroutedForward(EnsembleForward):
    """The base model with some tokens re-routed: tokens of the prompts, and new ones according to `persistence`.

    Args:
        states: N prompts.
        probs: [N, W, E] of each re-routed MoE layer: the pathways of the prompts' re-routed tokens, in order.
        span: the re-routed tokens of a prompt.
        persistence: one of `PERSISTENCE`. New tokens take the pathway of the prompt's last re-routed token.
    """

    shares_beginnings = False

    def __init__(
        self,
        model: nn.Module,
        states: Sequence[GenerationState],
        probs: dict[int, Tensor],
        span: TokenSpan,
        persistence: str,
    ):
        super().__init__(model, Ensemble())
        self.span, self.persistence = span, persistence
        self._remix = Remix({layer: probs_NWE.detach() for layer, probs_NWE in probs.items()})
        self._of = {(s.noise_key, s.sample_index): (n, len(s.prompt)) for n, s in enumerate(states)}

    def __enter__(self) -> Self:
        super().__enter__()
        self._stack.enter_context(routed(self.model, self._remix))
        return self

    def _may_be_recorded(self) -> bool:
        return False  # the host finds the re-routed tokens of each pass

    def __call__(self, tokens: Tokens, cache: KVCache) -> Tensor:
        self._remix.places = self._places(tokens)
        return super().__call__(tokens, cache)

    def _places(self, tokens: Tokens) -> Places:
        """The re-routed tokens of a pass."""
        index, pathway, share = [], [], []
        S = tokens.ids_BS.shape[1]
        positions, real = tokens.position_BS.tolist(), tokens.real_BS.tolist()
        keys = zip(tokens.noise_key_B.tolist(), tokens.sample_index_B.tolist(), strict=True)
        for b, key in enumerate(keys):
            n, length = self._of[key]
            for s in range(S):
                found = self._pathway(positions[b][s], length) if real[b][s] else None
                if found:
                    index.append(b * S + s)
                    pathway.append(n * self.span.size + found[0])
                    share.append(found[1])
        index_P, pathway_P = torch.tensor([index, pathway], dtype=torch.long)
        return Places(index_P, pathway_P, torch.tensor(share))

    def _pathway(self, position: int, length: int) -> tuple[int, float] | None:
        """(index of the pathway, its share) of the token at `position`, for a prompt of `length` tokens."""
        w = position - self.span.start(length)
        if position < length:
            return (w, 1.0) if 0 <= w < self.span.size else None
        if self.persistence == "prompt_last":
            return None
        new = position - length + 1
        return self.span.size - 1, HALVED**new if self.persistence == "decay" else 1.0
