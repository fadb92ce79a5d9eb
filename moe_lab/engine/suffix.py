"""Prompts with some tokens under other routings: recording, replay with gradients, and generation
(C3PO).

The base model reads a prompt once. Two things are cached: keys and values of the tokens before the
first re-routed one, and hidden states of the other tokens in front of the fork layer. A suffix is a
prompt from the first of its W re-routed tokens on, with the continuations that branch off its end.
A pass is then the suffixes of N prompts through the later layers, with gradients to the routing if
it requires them.

B = sequences, N = prompts of a pass, Q = tokens of one suffix, S = the most of these, T = cached
slots, W = re-routed tokens, M = logit positions of all suffixes, D = hidden size, E = experts, V =
vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Self

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
from moe_lab.errors import ConfigError, RoutingError
from moe_lab.routing import Router, Routing, routed
from moe_lab.routing.remix import Places, Remix, router_probs
from moe_lab.routing.tokens import decides_by_tokens


@dataclass(frozen=True)
class PromptSuffix:
    """Activations of the base model for one prompt and its suffix."""

    prompt: tuple[int, ...]
    """Its token ids."""
    prefix: KVCache
    """Keys and values of the prompt's tokens before the suffix, of the layers from the fork layer
    on."""
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
        tensors = (self.hidden_QD, self.pathway_WME, self.mean_D)
        return self.prefix.nbytes + sum(tensor.nbytes for tensor in tensors)


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
        """All of them, [B, S, hidden]."""
        return hidden_BSD

    def suffixes(
        self, requests: list[ScoringRequest], cache: KVCache, shared: int
    ) -> list[PromptSuffix]:
        """The suffixes of a batch, after its passes; `shared` tokens of each prompt are a shared
        prefix."""
        states = self.recorded()
        hidden_BSD = states.in_front_of_fork
        starts = [self.span.start(len(request.context)) for request in requests]
        # the host reads the device once for all prompts of the batch
        pathway_BWME = self._pathways([start - shared for start in starts]).cpu()
        means = []
        for b, request in enumerate(requests):
            unshared = len(request.context) - shared
            means.append(self._mean(states.in_front_of_head[b, :unshared]))
        mean_BD = torch.stack(means).cpu()

        suffixes = []
        for b, (request, start) in enumerate(zip(requests, starts, strict=True)):
            tree = TokenTree(request.context, request.continuations, cached=start)
            first = start - shared
            suffixes.append(
                PromptSuffix(
                    prompt=tuple(request.context),
                    prefix=cache.taken(b, start, self.fork),
                    hidden_QD=hidden_BSD[b, first : first + len(tree)].clone(),
                    pathway_WME=pathway_BWME[b],
                    mean_D=mean_BD[b],
                    tree=tree,
                )
            )
        return suffixes

    def _pathways(self, starts: list[int]) -> Tensor:
        """[B, W, MoE layers, E]: the routers' probabilities at the span of each prompt.

        The recorded logits are dropped.

        Args:
            starts: the first token of each prompt's span, as an index after the shared prefix.
        """
        B = len(starts)
        at_BW = torch.tensor(starts)[:, None] + torch.arange(self.span.size)
        row_B1 = torch.arange(B)[:, None]
        probs_of_layers = []
        for router in sorted(self._logits, key=lambda router: router.layer):
            parts = [part_TE.unflatten(0, (B, -1)) for part_TE in self._logits[router]]
            logits_BSE = torch.cat(parts, dim=1)
            span_logits_TE = logits_BSE[row_B1, at_BW].flatten(0, 1).to(self.device)
            probs_of_layers.append(router_probs(router, span_logits_TE))
        self._logits = {}
        return torch.stack(probs_of_layers, dim=1).unflatten(0, at_BW.shape)

    def _mean(self, unshared_SD: Tensor) -> Tensor:
        """float32 [D]: mean over a prompt's own tokens, `unshared_SD`, and those of the prefix that
        it shares."""
        total_D = unshared_SD.float().sum(dim=0)
        count = len(unshared_SD)
        for shared_BSD in self._shared:
            shared_SD = shared_BSD[0]
            total_D = total_D + shared_SD.float().sum(dim=0)
            count += len(shared_SD)
        return total_D / count


class SuffixReplay:
    """Reads prompts with the base model, then runs their suffixes through the later layers.

    Args:
        first_moe: the first MoE layer whose routing may be changed. Its decoder layer is the fork
            layer.
        span: the re-routed tokens of a prompt.

    Raises ConfigError for models that keep more than keys and values.
    """

    def __init__(self, model: nn.Module, first_moe: int, span: TokenSpan | None = None):
        if not runs_on_kv_cache(model):
            raise ConfigError(
                f"{type(model).__name__} keeps more than keys and values, or counts positions by "
                "them: the pathway of single tokens cannot be changed.\nmethod=base and method=roe "
                "run it."
            )
        self.model = model
        self.span = span or TokenSpan()
        self.recorder = SuffixRecorder(model, first_moe, self.span)
        self.forward = SuffixForward(model, first_moe)

    @property
    def tokens_in(self) -> int:
        """Tokens put through the model so far, padding excluded; those of a replay pass the later
        layers only."""
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

        Raises ValueError for a prompt with fewer tokens than the span, and RoutingError inside a
        policy that takes tokens.
        """
        if decides_by_tokens(self.model):
            raise RoutingError(
                "C3PO takes no policy with `tokens`: it reads a beginning that prompts share once, "
                "and later layers on their own. Use a policy of two arguments."
            )
        if continuations is None:
            continuations = [[[0]]] * len(prompts)
        requests = []
        beginnings = []
        for prompt, of_prompt in zip(prompts, continuations, strict=True):
            requests.append(ScoringRequest(prompt, of_prompt, noise_key=0))
            beginnings.append(prompt[: self.span.start(len(prompt)) + 1])
        kinds = [self.recorder.rotary.kind(request.length) for request in requests]

        suffixes: dict[int, PromptSuffix] = {}
        for group in group_by_prefix(beginnings, kinds):
            with self.recorder as recorder:
                for batch in batches(recorder, requests, group, budget):
                    for _ in batch.passes(recorder, budget):
                        pass  # it records
                    requests_of_batch = [requests[i] for i in batch.indices]
                    suffixes_of_batch = recorder.suffixes(
                        requests_of_batch, batch.cache, group.shared
                    )
                    suffixes.update(zip(batch.indices, suffixes_of_batch, strict=True))
        return [suffixes[i] for i in range(len(prompts))]

    def batch(self, suffixes: Sequence[PromptSuffix]) -> SuffixBatch:
        """Suffixes as one batch with joined prefixes, for several calls of `logits`."""
        device = self.forward.device
        T = max(suffix.prefix.length for suffix in suffixes)
        S = max(len(suffix.tree) for suffix in suffixes)
        hidden: list[Tensor] = []
        positions: list[list[int]] = []
        visible: list[Tensor] = []
        logits_at: list[int] = []
        for b, suffix in enumerate(suffixes):
            tree = suffix.tree
            padding = S - len(tree)
            hidden.append(nn.functional.pad(suffix.hidden_QD, (0, 0, 0, padding)))
            positions.append(tree.positions + [0] * padding)
            visible.append(_visible(tree, suffix.prefix.length, T, S))
            # places in [B x S]
            logits_at += [b * S + node for node in tree.logit_nodes]

        layers = []
        for prefix_layers in zip(*(suffix.prefix.layers for suffix in suffixes), strict=True):
            layers.append(SuffixLayer(list(prefix_layers), T, S))
        return SuffixBatch(
            hidden_BSD=torch.stack(hidden),
            position_BS=torch.tensor(positions, device=device),
            masks=LayerMasks(torch.stack(visible).to(device), self.model.dtype),
            layers=layers,
            logits_at=torch.tensor(logits_at, device=device),
            count=sum(len(suffix.tree) for suffix in suffixes),
            lengths=[suffix.tree.length for suffix in suffixes],
        )

    def logits(self, suffixes: Sequence[PromptSuffix] | SuffixBatch, remix: Remix | None) -> Tensor:
        """Next-token logits at the logit positions of each suffix, with its tokens re-routed.

        The logit positions are the prompt's last token and all tokens but the last of its
        continuations. Tokens that are not re-routed are routed as usual, and attend to the changed
        keys and values.

        Args:
            remix: routes the re-routed tokens; None: the plain model.

        Returns:
            float32 [M, V], float64 for a float64 model. It is differentiable in the probabilities
            of `remix` if these require gradients.
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
        """Scores of the continuations that each prompt was read with; with None those of the base
        model."""
        with torch.no_grad():
            logits_M1V = self.logits(self.batch(suffixes), remix)[:, None]
        scores = TokenScores([suffix.tree for suffix in suffixes]).after(Ensemble(), [logits_M1V])
        return scores.summed()


def _visible(tree: TokenTree, prefix: int, T: int, S: int) -> Tensor:
    """bool [S, T + S]: the slots of the prefix, which end at T, then those tokens of the tree that
    each attends to."""
    padding = S - len(tree)
    prefix_ST = (torch.arange(T) >= T - prefix).expand(S, -1)
    tree_SS = nn.functional.pad(torch.from_numpy(tree.visible), (0, padding, 0, padding))
    return torch.cat([prefix_ST, tree_SS], dim=-1)


@contextmanager
def _constant(model: nn.Module) -> Iterator[None]:
    """Inside the context no parameter requires gradients: only the routing is optimized."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


PERSISTENCE = ("prompt_last", "all_new", "decay")
"""Tokens that take a pathway: re-routed tokens of the prompt only; all new tokens, too; or all new
tokens, each mixed with its own routing: the pathway's share is `DECAY` times that of the token
before."""
DECAY = 0.5


class _SequenceKey(NamedTuple):
    """The keys by which a pass knows a sequence."""

    noise_key: int
    sample_index: int


class _ReroutedPrompt(NamedTuple):
    """A prompt of a `ReroutedForward`."""

    number: int
    """0 to N-1."""
    length: int
    """Tokens."""


class _PathwayOfToken(NamedTuple):
    """The pathway that a token takes."""

    place: int
    """0 to W-1: the re-routed token of the prompt whose pathway it is."""
    share: float
    """Its share; the rest are the token's own probabilities."""


class ReroutedForward(EnsembleForward):
    """The base model with some tokens re-routed: tokens of the prompts, and new ones according to
    `persistence`.

    Args:
        states: N prompts.
        probs: [N, W, E] of each re-routed MoE layer: the pathways of the prompts' re-routed tokens,
            in order.
        span: the re-routed tokens of a prompt.
        persistence: one of `PERSISTENCE`. New tokens take the pathway of the prompt's last
            re-routed token.
    """

    @property
    def shares_beginnings(self) -> bool:
        """Each prompt has its own pathway."""
        return False

    def __init__(
        self,
        model: nn.Module,
        states: Sequence[GenerationState],
        probs: dict[int, Tensor],
        span: TokenSpan,
        persistence: str,
    ):
        super().__init__(model, Ensemble())
        self.span = span
        self.persistence = persistence
        self._remix = Remix({layer: probs_NWE.detach() for layer, probs_NWE in probs.items()})
        self._prompt_of: dict[_SequenceKey, _ReroutedPrompt] = {}
        for n, state in enumerate(states):
            key = _SequenceKey(state.noise_key, state.sample_index)
            self._prompt_of[key] = _ReroutedPrompt(n, len(state.prompt))

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
        indices: list[int] = []
        pathways: list[int] = []
        shares: list[float] = []
        S = tokens.ids_BS.shape[1]
        W = self.span.size
        position_of = tokens.position_BS.tolist()
        is_real = tokens.real_BS.tolist()
        noise_keys = tokens.noise_key_B.tolist()
        sample_indices = tokens.sample_index_B.tolist()
        for b in range(len(noise_keys)):
            prompt = self._prompt_of[_SequenceKey(noise_keys[b], sample_indices[b])]
            for s in range(S):
                if not is_real[b][s]:
                    continue
                pathway = self._pathway(position_of[b][s], prompt.length)
                if pathway is None:
                    continue
                indices.append(b * S + s)
                pathways.append(prompt.number * W + pathway.place)
                shares.append(pathway.share)
        return Places(
            torch.tensor(indices, dtype=torch.long),
            torch.tensor(pathways, dtype=torch.long),
            torch.tensor(shares),
        )

    def _pathway(self, position: int, length: int) -> _PathwayOfToken | None:
        """The pathway of the token at `position`, for a prompt of `length` tokens.

        None: the token is routed as usual.
        """
        if position < length:
            place = position - self.span.start(length)
            if 0 <= place < self.span.size:
                return _PathwayOfToken(place, 1.0)
            return None
        last_place = self.span.size - 1
        if self.persistence == "prompt_last":
            return None
        if self.persistence == "all_new":
            return _PathwayOfToken(last_place, 1.0)
        new_tokens = position - length + 1
        return _PathwayOfToken(last_place, DECAY**new_tokens)
