"""The tokens that the engine puts through a model for given requests, padding excluded, without
running it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.engine.hf import Encoder

NEW_TOKENS = 256
"""lm-eval's default number of generated tokens."""
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Prompt:
    """A prompt after which texts are generated."""

    ids: Ids
    new: tuple[int, ...]
    """The number of new tokens of each of its answers."""

    @property
    def longest(self) -> int:
        """Tokens with the longest answer."""
        return len(self.ids) + max(self.new)


@dataclass
class Asked:
    """Requests as token ids. Equal ones are asked once."""

    scored: dict[Ids, dict[Ids, None]] = field(default_factory=dict)
    """The continuations of each context."""
    texts: dict[str, list[tuple[Ids, Ids]]] = field(default_factory=dict)
    """The windows of each text that is scored whole: a context, and the tokens after it."""
    generated: dict[str, dict[str, Prompt]] = field(default_factory=dict)
    """By generation settings and text."""

    def read(self, encoder: Encoder, kind: str, args: tuple, repeats: int = 1) -> None:
        """Add a request of lm-eval.

        Args:
            args: the request's arguments.
            repeats: the number of answers, if they are generated. Each counts with its greatest
                length.
        """
        if kind == "loglikelihood":
            context, continuation = encoder.pair(*args)
            self.scored.setdefault(context, {})[continuation] = None
        elif kind == "loglikelihood_rolling":
            self.texts[args[0]] = encoder.windows(args[0])
        else:
            from lm_eval.models.utils import normalize_gen_kwargs

            text, settings = args
            most = normalize_gen_kwargs(settings, NEW_TOKENS)["max_gen_toks"]
            ids = tuple(encoder.prompt(text, encoder.lm.max_length - most))
            prompts = self.generated.setdefault(repr(sorted(settings.items())), {})
            prompts[text] = Prompt(ids, (most,) * repeats)

    def add(self, other: Asked) -> None:
        """Take over the requests of another one."""
        for context, continuations in other.scored.items():
            self.scored.setdefault(context, {}).update(continuations)
        self.texts |= other.texts
        for settings, prompts in other.generated.items():
            self.generated.setdefault(settings, {}).update(prompts)

    def alone(self, each_continuation: bool) -> Iterator[Asked]:
        """Each request by itself: a context with its continuations, a window of a text, a generated
        answer.

        Args:
            each_continuation: whether each continuation of a context is a request by itself.
        """
        for context, continuations in self.scored.items():
            if each_continuation:
                for ids in continuations:
                    yield Asked(scored={context: {ids: None}})
            else:
                yield Asked(scored={context: continuations})
        for text, windows in self.texts.items():
            for window in windows:
                yield Asked(texts={text: [window]})
        for settings, prompts in self.generated.items():
            for text, prompt in prompts.items():
                for count in prompt.new:
                    yield Asked(generated={settings: {text: Prompt(prompt.ids, (count,))}})

    @property
    def pairs(self) -> list[tuple[Ids, Ids]]:
        """Each context with each of its continuations."""
        pairs = []
        for context, continuations in self.scored.items():
            for ids in continuations:
                pairs.append((context, ids))
        return pairs

    @property
    def windows(self) -> list[tuple[Ids, Ids]]:
        """The windows of all texts that are scored whole."""
        return list(chain.from_iterable(self.texts.values()))

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts of all generation settings."""
        prompts: list[Prompt] = []
        for prompt_of_text in self.generated.values():
            prompts += prompt_of_text.values()
        return prompts

    @property
    def answers(self) -> int:
        """The number of scored and generated answers."""
        return len(self.pairs) + len(self.texts) + len(self.new_tokens)

    @property
    def longest(self) -> int:
        """Tokens of the longest request with its answer; 0 without requests."""
        lengths = [len(context) + len(ids) for context, ids in [*self.pairs, *self.windows]]
        lengths += [prompt.longest for prompt in self.prompts]
        return max(lengths, default=0)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts; a prompt counts once for all its answers."""
        of_contexts = sum(len(context) for context in self.scored)
        return of_contexts + sum(len(prompt.ids) for prompt in self.prompts)

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers."""
        scored = sum(len(ids) for _, ids in [*self.pairs, *self.windows])
        return scored + sum(self.new_tokens)

    @property
    def new_tokens(self) -> list[int]:
        """The length of each generated answer."""
        return list(chain.from_iterable(prompt.new for prompt in self.prompts))


def planned_tokens(
    asked: Asked, ensemble: Ensemble, *, shares_beginnings: bool = True, apart: bool = False
) -> int:
    """The tokens that an engine reads, each routing sample of a token counted, as `EngineLM.cost`
    counts them.

    An upper bound where answers have the greatest length. With `prefill="clean"` every batch reads
    the beginnings that its prompts share, and this counts them once.

    Args:
        shares_beginnings: whether a `KVEngine` runs the model. Without one `RecurrentEngine` reads
            each request alone, and lm-eval's own code, which runs base models then, reads a context
            again for each continuation.
        apart: whether texts share no beginning, since a policy decides by their keys. A context is
            read once for its continuations.
    """
    from moe_lab.engine.scoring import ScoringRequest, tokens_to_score

    if apart or not shares_beginnings:
        single = asked.alone(each_continuation=ensemble.plain and not apart)
        return sum(planned_tokens(request, ensemble) for request in single)
    of_contexts = []
    for context, continuations in asked.scored.items():
        of_contexts.append(ScoringRequest(context, list(continuations), noise_key=0))
    of_texts = [ScoringRequest(context, [ids], noise_key=0) for context, ids in asked.windows]
    total = 0
    for requests in (of_contexts, of_texts):
        if requests:
            total += tokens_to_score(ensemble, requests)
    for prompts in asked.generated.values():
        total += _tokens_to_generate(list(prompts.values()), ensemble)
    return total


def _tokens_to_generate(prompts: Sequence[Prompt], ensemble: Ensemble) -> int:
    """The tokens that are read for all answers to prompts with the same generation settings.

    The last new token of an answer is not read. Without a cache all tokens are read again for every
    new one.
    """
    answers: list[tuple[Ids, int]] = []
    for prompt in prompts:
        for count in prompt.new:
            answers.append((prompt.ids, count))
    prompt_tokens = sum(len(ids) for ids, _ in answers)
    new_tokens = sum(count for _, count in answers)
    n = ensemble.n
    if not ensemble.own_history:
        return _read_once([ids for ids, _ in answers]) + n * new_tokens - len(answers)

    reads_prompts_once = ensemble.prefill == "clean"
    if ensemble.cache == "standard":
        if reads_prompts_once:
            return _beginnings([ids for ids, _ in answers]) + n * new_tokens
        return n * (prompt_tokens + new_tokens - len(answers))

    total = 0
    for step in range(max(count for _, count in answers)):
        active = [ids for ids, count in answers if count > step]
        if reads_prompts_once:
            total += _beginnings(active)
        for ids in active:
            own_prompt = 1 if reads_prompts_once else len(ids)
            total += n * (own_prompt + step)
    return total


def _beginnings(prompts: Sequence[Ids]) -> int:
    """Tokens of prompts without their last ones, equal ones and common beginnings read once."""
    beginnings = dict.fromkeys(ids[:-1] for ids in prompts)
    return _read_once(list(beginnings))


def _read_once(prompts: Sequence[Ids]) -> int:
    """Tokens of prompts whose common beginnings are read once."""
    from moe_lab.engine.forward.batch import group_by_prefix

    tokens = 0
    for group in group_by_prefix(prompts):
        tokens += group.shared
        for number in group.members:
            tokens += len(prompts[number]) - group.shared
    return tokens
