"""What a policy may know of the tokens that it decides for: `policy(router, routing, tokens)`.

    def noisy(router, routing, tokens, temperature=0.1):
        scores_TE = router.scores(routing.logits_TE) + temperature * tokens.gumbel(router)
        index_TK = router.choose(scores_TE, routing.index_TK.shape[-1])
        weights_TK = router.weights(routing.logits_TE, index_TK)
        return routing._replace(index_TK=index_TK, weights_TK=weights_TK)

`with_tokens` gives a policy its third argument. An engine, which knows the text of each token, says
what it puts through the model by `told`. Of other passes, the text is what the model reads.

T = tokens of a pass at a router, N = tokens that are chosen among them, B = rows of a pass, S =
tokens of each, E = experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from moe_lab.config.policy_arguments import takes_tokens
from moe_lab.errors import RoutingError
from moe_lab.routing.noise import document_key, gumbel_for_tokens, uniform_for_tokens
from moe_lab.routing.passes import (
    PassReader,
    PassTokens,
    cached_tokens,
    has_virtual_tokens,
    inputs_of,
    on_passes,
    transformers_model,
)
from moe_lab.routing.policy import Policy, PolicyFunction
from moe_lab.routing.router import Router
from moe_lab.routing.rules import Routing


@dataclass(frozen=True)
class KeyedTokens(PassTokens):
    """The tokens of a pass with the keys of their noise. All [T]."""

    new_T: Tensor
    """bool: True for generated tokens, and for those of a continuation that is scored; False for
    those of a prompt."""
    document_T: Tensor
    """int64: the key of the text, which is `document_key` of its prompt."""
    repeat_T: Tensor
    """int64: 0, 1, ... for several answers to one prompt."""
    sample_T: Tensor
    """int64: the routing sample, the row of an ensemble; 0 for the clean one, without an ensemble,
    and in the layers before the first noisy one, which samples share."""

    def at(self, index_N: Tensor) -> Self:
        """The chosen tokens."""
        return self._each(lambda values_T: values_T[index_N.to(values_T.device)])

    def to(self, device: torch.device) -> Self:
        """The same tokens on a device. Layers may be on several."""
        if self.real_T.device == device:
            return self
        return self._each(lambda values_T: values_T.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The tokens with each of the tensors changed."""
        changed = {field.name: change(getattr(self, field.name)) for field in fields(KeyedTokens)}
        return replace(self, **changed)


@dataclass(frozen=True)
class PolicyTokens(KeyedTokens):
    """The third argument of a policy: the T tokens that it decides for.

    Tokens of one text have the same number in `sequence_T`. Answer choices that branch off one
    context are one sequence: two of its tokens may have the same position.
    """

    seed: int
    """Key of the noise."""
    state: dict[Any, Any]
    """Lives as long as the run's model is open, or as the context of `override`. What it holds of a
    text must be keyed by the text (`document_T`), and be computed from it alone: texts come in any
    order, and a run that is continued begins with an empty dictionary."""
    experts: dict[int, int]
    """The number of experts of each MoE layer that was called so far."""

    def gumbel(self, router: Router) -> Tensor:
        """float32 [T, E]: keyed Gumbel(0, 1) noise, that of `method=roe`.

        It depends on seed, text, repeat, sample, layer, position and expert alone.
        """
        return gumbel_for_tokens(*self._keys(router))[0]

    def uniform(self, router: Router) -> Tensor:
        """float32 [T, E]: keyed uniform numbers, above 0 and below 1.

        They come from the same bits as `gumbel`: a policy should use one of the two at a router.
        """
        return uniform_for_tokens(*self._keys(router))[0]

    def _keys(self, router: Router) -> tuple[int, Tensor, Tensor, Tensor, Tensor, Tensor, int]:
        """The arguments of `gumbel_for_tokens`."""
        layer_L = torch.tensor([router.layer], device=self.document_T.device)
        return (
            self.seed,
            self.document_T,
            self.repeat_T,
            self.sample_T,
            self.position_T,
            layer_L,
            self.experts[router.layer],
        )


TokenPolicyFunction = Callable[[Router, Routing, PolicyTokens], Routing | None]
"""A policy that is told the tokens that it decides for."""


class TokenSource:
    """The tokens of the pass that runs, for one policy.

    Args:
        seed: key of the noise.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self.state: dict[Any, Any] = {}
        self._experts: dict[int, int] = {}
        self._of_engine: dict[int, PolicyTokens] | None = None
        """By their number T. None: no engine runs the pass."""
        self._shared_layers = 0
        self._of_inputs: PolicyTokens | None = None
        """Of the newest pass that no engine ran."""

    @property
    def is_told(self) -> bool:
        """Whether an engine runs the pass, and has said what its tokens are."""
        return self._of_engine is not None

    def tell(self, stages: Sequence[KeyedTokens], shared_layers: int) -> None:
        """Set the tokens of a pass. It may have several numbers of them: those of the layers before
        samples fork, and those after.

        Args:
            shared_layers: the number of MoE layers in which all samples are sample 0.
        """
        self._shared_layers = shared_layers
        self._of_engine = {len(tokens.real_T): self._for_policy(tokens) for tokens in stages}

    def forget(self) -> None:
        """The pass of the engine has ended."""
        self._of_engine = None

    def tell_inputs(self, tokens: KeyedTokens) -> None:
        """Set the tokens of a pass that no engine runs."""
        self._of_inputs = self._for_policy(tokens)

    def _for_policy(self, tokens: KeyedTokens) -> PolicyTokens:
        return PolicyTokens(**vars(tokens), seed=self.seed, state=self.state, experts=self._experts)

    def of(self, router: Router, routing: Routing) -> PolicyTokens:
        """The tokens of a decision. Raises RoutingError where they are unknown."""
        T, E = routing.logits_TE.shape
        self._experts[router.layer] = E
        tokens = self._of_inputs
        if self._of_engine is not None:
            tokens = self._of_engine.get(T)
        if tokens is None or len(tokens.real_T) != T:
            raise RoutingError(
                f"The router {router.name} decides for {T} tokens, and which these are is unknown: "
                "a policy with `tokens` runs in model(...), model.generate, RoE and commands."
            )
        if router.layer < self._shared_layers:
            tokens = replace(tokens, sample_T=torch.zeros_like(tokens.sample_T))
        return tokens.to(routing.logits_TE.device)


_sources: WeakKeyDictionary[nn.Module, list[TokenSource]] = WeakKeyDictionary()
"""Those of the policies with `tokens` on each model."""
_whole_passes: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""How many of these decide for all tokens of a pass, by model."""


def decides_by_tokens(model: nn.Module) -> bool:
    """Whether a policy with `tokens` decides for all tokens of this model's passes.

    The routing of a token may then depend on its text: two texts share no prefix.
    """
    if not _whole_passes or has_virtual_tokens(model):
        return False
    return transformers_model(model) in _whole_passes


def told(
    model: nn.Module, make_stages: Callable[[], Sequence[KeyedTokens]], shared_layers: int = 0
) -> Any:
    """A context manager around a pass of an engine: policies get these tokens.

    Without a policy that takes tokens, `make_stages` is not called.

    Args:
        make_stages, shared_layers: of `TokenSource.tell`.
    """
    sources = _sources.get(transformers_model(model)) if _sources else None
    if sources is None:
        return nullcontext()
    return _telling(sources, make_stages(), shared_layers)


@contextmanager
def _telling(
    sources: Sequence[TokenSource], stages: Sequence[KeyedTokens], shared_layers: int
) -> Iterator[None]:
    for source in sources:
        source.tell(stages, shared_layers)
    try:
        yield
    finally:
        for source in sources:
            source.forget()


@contextmanager
def sample_source(model: nn.Module, seed: int) -> Iterator[TokenSource]:
    """The tokens of an engine's passes, for a policy that decides for routing samples alone."""
    source = TokenSource(seed)
    inner = transformers_model(model)
    sources = _sources.setdefault(inner, [])
    sources.append(source)
    try:
        yield source
    finally:
        sources.remove(source)
        if not sources:
            del _sources[inner]


@contextmanager
def with_tokens(
    model: nn.Module, policy: PolicyFunction | TokenPolicyFunction, seed: int
) -> Iterator[PolicyFunction]:
    """The policy as one of two arguments, router and routing; itself where it takes no tokens.

    Args:
        seed: key of the noise.
    """
    if not takes_tokens(policy):
        two_arguments: Any = policy
        yield two_arguments
        return
    inner = transformers_model(model)
    with sample_source(model, seed) as source:
        handles = on_passes(model, _InputReader(source).before)
        _whole_passes[inner] = _whole_passes.get(inner, 0) + 1
        try:
            yield _WithTokens(policy, source)
        finally:
            _whole_passes[inner] -= 1
            if not _whole_passes[inner]:
                del _whole_passes[inner]
            for handle in handles:
                handle.remove()


class _WithTokens(Policy):
    """A policy of three arguments, as one of two."""

    def __init__(self, policy: Callable[..., Any], source: TokenSource):
        self._policy = policy
        self._source = source

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        changed: Routing | None = self._policy(router, routing, self._source.of(router, routing))
        return changed

    def counts(self) -> dict[str, int]:
        return self._policy.counts() if isinstance(self._policy, Policy) else {}


class _InputReader:
    """Reads the tokens of passes that no engine runs, from the arguments of `model(...)`."""

    def __init__(self, source: TokenSource):
        self._source = source
        self._reader = PassReader()
        self._documents: Tensor | None = None
        """int64: the key of each sequence of the newest pass without cached tokens."""

    def before(self, args: tuple, kwargs: dict[str, Any]) -> None:
        """Before a pass. The host reads the ids of prompts, and waits for the device."""
        if self._source.is_told:
            return
        tokens = self._reader.read(args, kwargs)
        number_T = tokens.sequence_T - self._reader.first_number
        inputs = inputs_of(args, kwargs)
        is_new = cached_tokens(kwargs) > 0
        if not is_new:
            if inputs.dim() > 2:
                raise RoutingError(
                    "A policy with `tokens` knows a text by its ids: give input_ids, and no "
                    "inputs_embeds."
                )
            self._documents = _documents(inputs, tokens, number_T)
        elif self._documents is None or len(self._documents) != len(inputs):
            raise RoutingError(
                "A policy with `tokens` must see each text from its first token on: the cache of "
                "this pass holds other texts than those that the model read before."
            )
        assert self._documents is not None
        zero_T = torch.zeros_like(tokens.position_T)
        self._source.tell_inputs(
            KeyedTokens(
                **vars(tokens),
                new_T=torch.full_like(tokens.real_T, is_new),
                document_T=self._documents.to(number_T.device)[number_T],
                repeat_T=zero_T,
                sample_T=zero_T,
            )
        )


def _documents(ids_BS: Tensor, tokens: PassTokens, number_T: Tensor) -> Tensor:
    """int64: `document_key` of each sequence of a pass, without padding."""
    ids_of: list[list[int]] = [[] for _ in range(int(number_T.max()) + 1)]
    real = tokens.real_T.tolist()
    for number, token, is_real in zip(
        number_T.tolist(), ids_BS.reshape(-1).tolist(), real, strict=True
    ):
        if is_real:
            ids_of[number].append(token)
    return torch.tensor([document_key(ids) for ids in ids_of])
