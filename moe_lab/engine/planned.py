"""The tokens that the engine puts through a model for given requests, padding excluded, without running it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.engine.hf import Encoder

NEW_TOKENS = 256
"""lm-eval's default number of generated tokens."""
Ids = tuple[int, ...]


@dataclass
class Asked:
    """Requests as token ids. Equal ones are asked once."""

    scored: dict[Ids, dict[Ids, None]] = field(default_factory=dict)
    """The continuations of each context."""
    texts: dict[str, list[tuple[Ids, Ids]]] = field(default_factory=dict)
    """The windows of each text that is scored whole: a context, and the tokens after it."""
    generated: dict[str, dict[str, tuple[Ids, tuple[int, ...]]]] = field(default_factory=dict)
    """By generation settings and text: a prompt, and the number of new tokens of each of its answers."""

    def read(self, encoder: Encoder, kind: str, args: tuple, repeats: int = 1) -> None:
        """Add a request of lm-eval, with `repeats` answers of the greatest length if they are generated."""
        if kind == "loglikelihood":
            context, continuation = encoder.pair(*args)
            self.scored.setdefault(context, {})[continuation] = None
        elif kind == "loglikelihood_rolling":
            self.texts[args[0]] = encoder.windows(args[0])
        else:
            from lm_eval.models.utils import normalize_gen_kwargs

            most = normalize_gen_kwargs(args[1], NEW_TOKENS)["max_gen_toks"]
            prompt = tuple(encoder.prompt(args[0], encoder.lm.max_length - most))
            self.generated.setdefault(repr(sorted(args[1].items())), {})[args[0]] = (
                prompt,
                (most,) * repeats,
            )

    def add(self, other: Asked) -> None:
        """Take over the requests of another one."""
        for context, continuations in other.scored.items():
            self.scored.setdefault(context, {}).update(continuations)
        self.texts |= other.texts
        for settings, prompts in other.generated.items():
            self.generated.setdefault(settings, {}).update(prompts)

    def alone(self, each_continuation: bool) -> Iterator[Asked]:
        """Each request by itself: a context with its continuations or with one of them, a window, an answer."""
        for context, continuations in self.scored.items():
            parts = [{ids: None} for ids in continuations] if each_continuation else [continuations]
            for part in parts:
                yield Asked(scored={context: part})
        for text, windows in self.texts.items():
            for window in windows:
                yield Asked(texts={text: [window]})
        for settings, prompts in self.generated.items():
            for text, (prompt, new) in prompts.items():
                for count in new:
                    yield Asked(generated={settings: {text: (prompt, (count,))}})

    @property
    def answers(self) -> int:
        """Scored and generated answers."""
        return sum(map(len, self.scored.values())) + len(self.texts) + len(self.new_tokens)

    @property
    def longest(self) -> int:
        """Tokens of the longest request with its answer."""
        pairs = [
            (context, ids)
            for context, continuations in self.scored.items()
            for ids in continuations
        ]
        pairs += [window for windows in self.texts.values() for window in windows]
        prompts = [each for of_settings in self.generated.values() for each in of_settings.values()]
        scored = [len(context) + len(ids) for context, ids in pairs]
        return max(scored + [len(prompt) + max(new) for prompt, new in prompts], default=0)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts; a prompt counts once for all its answers."""
        prompts = [
            prompt for of_settings in self.generated.values() for prompt, _ in of_settings.values()
        ]
        return sum(map(len, self.scored)) + sum(map(len, prompts))

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers."""
        scored = sum(len(ids) for continuations in self.scored.values() for ids in continuations)
        texts = sum(len(ids) for windows in self.texts.values() for _, ids in windows)
        return scored + texts + sum(self.new_tokens)

    @property
    def new_tokens(self) -> list[int]:
        """The length of each generated answer."""
        of_prompts = [new for prompts in self.generated.values() for _, new in prompts.values()]
        return [count for new in of_prompts for count in new]


def planned_tokens(asked: Asked, ensemble: Ensemble, *, shares_beginnings: bool = True) -> int:
    """The tokens that an engine reads, each routing sample of a token counted, as `EngineLM.cost` counts them.

    An upper bound where answers have the greatest length. With `prefill="clean"` every batch reads the beginnings that
    its prompts share, and this counts them once.

    Args:
        shares_beginnings: whether a `KVEngine` runs the model. Without one `RecurrentEngine` reads each request alone,
            and lm-eval's own code, which runs base models then, reads a context again for each continuation.
    """
    from moe_lab.engine.scoring import ScoringRequest, tokens_to_score

    if not shares_beginnings:
        single = asked.alone(each_continuation=ensemble.plain)
        return sum(planned_tokens(request, ensemble) for request in single)
    pairs = [(context, list(continuations)) for context, continuations in asked.scored.items()]
    windows = [(context, [ids]) for texts in asked.texts.values() for context, ids in texts]
    total = 0
    for requests in (pairs, windows):
        if requests:
            total += tokens_to_score(
                ensemble, [ScoringRequest(*request, noise_key=0) for request in requests]
            )
    return total + sum(
        _generating(list(prompts.values()), ensemble) for prompts in asked.generated.values()
    )


def _generating(prompts: Sequence[tuple[Ids, tuple[int, ...]]], ensemble: Ensemble) -> int:
    """The last new token of an answer is not read. Without a cache all tokens are read again for every new one."""
    n, clean = ensemble.n, ensemble.prefill == "clean"
    each = [(prompt, count) for prompt, new in prompts for count in new]
    new, lengths = sum(count for _, count in each), sum(len(prompt) for prompt, _ in each)
    if not ensemble.own_history:
        return _read_once([prompt for prompt, _ in each]) + n * new - len(each)
    if ensemble.cache == "standard":
        beginnings = [prompt[:-1] for prompt, _ in each]
        return (
            _read_once(list(dict.fromkeys(beginnings))) + n * new
            if clean
            else n * (lengths + new - len(each))
        )
    total = 0
    for step in range(max(count for _, count in each)):
        active = [prompt for prompt, count in each if count > step]
        read = [prompt[:-1] for prompt in active] if clean else []
        total += _read_once(list(dict.fromkeys(read))) + n * sum(
            step + (1 if clean else len(prompt)) for prompt in active
        )
    return total


def _read_once(prompts: Sequence[Ids]) -> int:
    """Tokens of prompts whose common beginnings are read once."""
    from moe_lab.engine.forward.batch import group_by_prefix

    groups = group_by_prefix(prompts)
    return sum(
        group.shared + sum(len(prompts[i]) - group.shared for i in group.members)
        for group in groups
    )
