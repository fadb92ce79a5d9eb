"""How an `EngineLM` answers the three kinds of requests of lm-eval: pairs, whole texts, and prompts
to generate after.

Each function puts requests as token ids to an engine, and reports every answer as soon as it is
known.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)

from moe_lab.engine.engine import Engine
from moe_lab.engine.forward.forward import Observer
from moe_lab.engine.forward.rotary import RotaryHooks
from moe_lab.engine.hf import THINK_END, Encoder, OnAnswer, Request
from moe_lab.engine.sampling import (
    Decoding,
    GenerationState,
    Sampler,
    StoppingCriteria,
    generation_config,
)
from moe_lab.engine.scoring import Scores, ScoringRequest
from moe_lab.errors import ConfigError
from moe_lab.routing.noise import document_key

if TYPE_CHECKING:
    from transformers import GenerationConfig

logger = logging.getLogger("moe_lab")


class AnsweringLM(Protocol):
    """What these functions use of an `EngineLM`."""

    model: Any
    tokenizer: Any
    seed: int
    """Of sampling."""
    encoder: Encoder
    rotary: RotaryHooks
    observer: Observer
    """Gets the tokens that the model read for each request."""
    counted: Counter[str]
    """Named counts of what happened (`EngineLM.cost`)."""
    kept_states: dict[str, GenerationState] | None
    """Takes the tokens generated for each prompt, by its text; None: nobody asks for them."""

    @property
    def max_length(self) -> int: ...

    @property
    def max_gen_toks(self) -> int: ...

    @property
    def eot_token_id(self) -> int: ...

    def warning_of_cuts(self, requests: int) -> AbstractContextManager[None]: ...

    def tok_decode(self, tokens: Any, skip_special_tokens: bool = True) -> Any: ...

    def decode_answer(self, prompt: Sequence[int], new: Sequence[int]) -> str: ...


class ReadContext(NamedTuple):
    """What continuations share that are scored after one reading of a context."""

    ids: tuple[int, ...]
    kind: int
    """Of the texts that begin with it (`RotaryHooks.kind`)."""


class GeneratedText(str):
    """A generated answer. It is a text in all respects, and knows how probable its tokens were."""

    log_probability: float
    """The mean over all generated tokens, in nats."""


IndicesByContinuation = dict[tuple[int, ...], list[int]]
"""The indices of the requests for each continuation (token ids) of a context."""


def score_pairs(
    lm: AnsweringLM, engine: Engine, requests: Sequence[Request], report: OnAnswer
) -> None:
    """Score each continuation after its context. Equal pairs are scored once."""
    with lm.warning_of_cuts(len(requests)):
        pairs = list(lm.encoder.pairs([request.args for request in requests]))
    of_contexts: dict[ReadContext, IndicesByContinuation] = {}
    for i, (context_ids, continuation_ids) in enumerate(pairs):
        kind = lm.rotary.kind(len(context_ids) + len(continuation_ids) - 1)
        of_context = of_contexts.setdefault(ReadContext(context_ids, kind), {})
        of_context.setdefault(continuation_ids, []).append(i)

    scoring_requests = []
    for context, of_context in of_contexts.items():
        first_requests = [requests[indices[0]] for indices in of_context.values()]
        scoring_requests.append(
            ScoringRequest(
                context.ids,
                list(of_context),
                document_key(context.ids),
                text=first_requests[0].args[0],
                texts=[request.args[1] for request in first_requests],
            )
        )
    indices_of_contexts = list(of_contexts.values())

    def on_scores(number: int, scores: Scores) -> None:
        indices_of_continuations = indices_of_contexts[number].values()
        for answer, indices in zip(scores, indices_of_continuations, strict=True):
            for i in indices:
                report(i, answer)
                context_ids, continuation_ids = pairs[i]
                lm.observer.read("loglikelihood", requests[i], context_ids, continuation_ids[:-1])

    engine.score(scoring_requests, on_scores)


def score_texts(
    lm: AnsweringLM, engine: Engine, requests: Sequence[Request], report: OnAnswer
) -> None:
    """Score each text in windows of at most `max_length` tokens.

    A text is answered after its last window, with the sum of their log-likelihoods: 0.0 for a text
    without tokens.
    """
    windows: list[ScoringRequest] = []
    text_of_window: list[int] = []
    missing: Counter[int] = Counter()  # windows of each text that are not scored yet
    for i, request in enumerate(requests):
        for context, continuation in lm.encoder.windows(request.args[0]):
            key = document_key([*context, *continuation])
            windows.append(ScoringRequest(context, [continuation], key))
            text_of_window.append(i)
            missing[i] += 1
        if not missing[i]:
            report(i, 0.0)
    log_likelihoods = [0.0] * len(requests)

    def on_scores(number: int, scores: Scores) -> None:
        i = text_of_window[number]
        log_likelihood, _ = scores[0]
        log_likelihoods[i] += log_likelihood
        window = windows[number]
        read = window.continuations[0][:-1]
        lm.observer.read("loglikelihood_rolling", requests[i], window.context, read)
        missing[i] -= 1
        if not missing[i]:
            report(i, log_likelihoods[i])

    if windows:
        engine.score(windows, on_scores)


def generate(
    lm: AnsweringLM, engine: Engine, requests: Sequence[Request], report: OnAnswer
) -> None:
    """Generate for all requests with the same generation options together."""
    by_options: dict[str, dict[int, Request]] = {}
    for i, request in enumerate(requests):
        options = repr(sorted(request.args[1].items()))  # some have lists as values
        by_options.setdefault(options, {})[i] = request
    for alike in by_options.values():
        _generate_alike(lm, engine, alike, report)


def _generate_alike(
    lm: AnsweringLM, engine: Engine, requests: dict[int, Request], report: OnAnswer
) -> None:
    """`generate` for requests with the same options, by their indices."""
    first = next(iter(requests.values()))
    settings = _settings(lm, first.args[1])
    with lm.warning_of_cuts(len(requests)):
        prompts = []
        for request in requests.values():
            prompts.append(lm.encoder.prompt(request.args[0], settings.room))
    bounds = _bounds(settings.config, settings.max_length, prompts)
    states = []
    for (i, request), prompt in zip(requests.items(), prompts, strict=True):
        text = request.args[0]
        states.append(GenerationState(i, prompt, document_key(prompt), request.repeat, text))

    def on_done(state: GenerationState) -> None:
        lm.counted["tokens_out"] += len(state.generated)
        text = _answer_text(lm, state, settings.think_end)
        if lm.kept_states is not None:
            lm.kept_states[state.text] = state
        answer = GeneratedText(postprocess_generated_text(text, settings.stop, None))
        answer.log_probability = state.log_probability / len(state.generated)
        report(state.index, answer)
        read = state.generated[:-1]
        lm.observer.read("generate_until", requests[state.index], state.prompt, read)

    sampler = Sampler(lm.model, settings.config, lm.seed)
    # a task's stop words may be in the reasoning, too
    stop_texts = settings.stop if settings.think_end is None else [settings.end_text]
    stopping = StoppingCriteria(lm.tokenizer, stop_texts, settings.config, bounds.max_length)
    cut_before = lm.counted["cut_reasoning"]
    engine.generate(states, Decoding(sampler, stopping, bounds.max_new_tokens), on_done)
    lm.counted["near_ties"] += sampler.near_ties
    cut = lm.counted["cut_reasoning"] - cut_before
    if cut:
        logger.warning(
            "%s of %s replies end before %s, within %s new tokens: their answers are empty. "
            "Allow more with gen_kwargs=max_gen_toks=<n>.",
            f"{cut:,}",
            f"{len(states):,}",
            settings.think_end,
            f"{bounds.max_new_tokens:,}",
        )


class GenerationSettings(NamedTuple):
    """How answers with the same options are generated."""

    config: GenerationConfig
    stop: list[str]
    """Texts at which an answer is cut: the task's, and `end_text`."""
    end_text: str
    """The text of the tokenizer's end token."""
    think_end: str | None
    """The text that ends the reasoning; None: the model does not reason first."""
    room: int
    """The most tokens of a prompt."""
    max_length: int | None
    """The task's bound on the tokens of prompt and answer."""


def _settings(lm: AnsweringLM, given: dict[str, Any]) -> GenerationSettings:
    """The settings for the options of a request.

    Raises ConfigError for options that leave no room for a prompt, or that are not supported.
    """
    options = normalize_gen_kwargs(given, lm.max_gen_toks)
    end_text = lm.tok_decode(lm.eot_token_id, skip_special_tokens=False)
    stop = handle_stop_sequences(options.pop("until", None), eos=end_text)
    think_end = options.pop(THINK_END, None)
    max_gen_toks = options.pop("max_gen_toks")
    room = lm.max_length - max_gen_toks
    if room <= 0:
        raise ConfigError(
            f"max_gen_toks={max_gen_toks} leaves no room for a prompt: the model reads at most "
            f"{lm.max_length} tokens. Lower max_gen_toks in gen_kwargs, or raise max_length."
        )
    if not options["do_sample"]:
        options.pop("temperature", None)
    max_length = options.get("max_length")
    config = generation_config(lm.model, options)
    if config.max_new_tokens is None and max_length is None:
        config.max_new_tokens = max_gen_toks
    return GenerationSettings(config, stop, end_text, think_end, room, max_length)


def _answer_text(lm: AnsweringLM, state: GenerationState, think_end: str | None) -> str:
    """The text of the generated tokens; with `think_end` the part after the reasoning."""
    if think_end is None:
        return lm.decode_answer(state.prompt, state.generated)
    reply = lm.tok_decode(state.generated, skip_special_tokens=False)
    return _after_reasoning(lm, reply, think_end)


class Bounds(NamedTuple):
    """Where an answer ends at the latest."""

    max_new_tokens: int
    max_length: int | None
    """Tokens of prompt and answer; None: any number."""


def _bounds(
    config: GenerationConfig, max_length: int | None, prompts: Sequence[Sequence[int]]
) -> Bounds:
    """The bounds of answers to these prompts. `max_new_tokens` takes precedence, as it does in
    transformers.

    Raises ConfigError for a prompt that has `max_length` tokens already.
    """
    if config.max_new_tokens is not None:
        return Bounds(config.max_new_tokens, None)
    assert max_length is not None
    longest = max(len(prompt) for prompt in prompts)
    shortest = min(len(prompt) for prompt in prompts)
    if longest >= max_length:
        raise ConfigError(
            f"max_length={max_length} in gen_kwargs counts the prompt, and one has {longest} "
            "tokens. Use max_gen_toks=<n>, which counts new tokens alone."
        )
    return Bounds(max_length - shortest, max_length)


def _after_reasoning(lm: AnsweringLM, reply: str, think_end: str) -> str:
    """The answer in a reply: the text after the last `think_end`, up to a special token.

    A reply without `think_end` ended in the reasoning: it is counted, and its answer is empty.
    lm-eval would take the reasoning as the answer.
    """
    _, separator, answer = reply.rpartition(think_end)
    if not separator:
        lm.counted["cut_reasoning"] += 1
        return ""
    special_tokens: list[Any] = []
    for token in lm.tokenizer.added_tokens_decoder.values():
        if token.special:
            special_tokens.append(str(token))
    return postprocess_generated_text(answer, special_tokens, None).lstrip()
