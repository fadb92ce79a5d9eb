"""What every engine generates by: sequences and their next tokens, where they end, and the options
that it supports.

A = unfinished sequences, V = vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList

from moe_lab.engine.forward.batch import token_names
from moe_lab.errors import ConfigError, RoutingError
from moe_lab.models import transformers_internals as internals
from moe_lab.routing.noise import gumbel_for_tokens


@dataclass
class GenerationState:
    """A prompt and the tokens generated after it, as token ids."""

    index: int
    """Number of the request."""
    prompt: Sequence[int]
    noise_key: int
    """`document_key` of the prompt."""
    sample_index: int = 0
    """0, 1, ... for several answers to one prompt."""
    text: str = ""
    """The prompt's text."""
    generated: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    """The sum over the generated tokens, in nats, under the distribution that the engine returns:
    before logits processors and temperature."""
    _named_tokens: int = 0
    """Tokens that `name` has read so far."""
    _name: np.int64 = field(default_factory=np.int64)
    """The name of the last one of these."""

    @property
    def name(self) -> np.int64:
        """`prefix_names` of the newest token."""
        length = len(self.prompt) + len(self.generated)
        if self._named_tokens < length:
            new_positions = range(self._named_tokens, length)
            hashes = token_names(self.ids[self._named_tokens :], new_positions)
            self._name = np.add.reduce(hashes, initial=self._name)
            self._named_tokens = length
        return self._name

    @property
    def position(self) -> int:
        """Index of the newest token."""
        return len(self.prompt) + len(self.generated) - 1

    @property
    def ids(self) -> list[int]:
        """Prompt and generated tokens."""
        return [*self.prompt, *self.generated]


RETURNED = ("return_dict_in_generate", "output_scores", "output_logits")
"""Fields that choose what `generate` returns."""
UNSUPPORTED = {
    **dict.fromkeys(
        ("num_beams", "num_beam_groups", "constraints", "force_words_ids", "penalty_alpha"),
        "the engine decodes one sequence at a time, greedily or by sampling",
    ),
    **dict.fromkeys(
        ("use_mtp", "prompt_lookup_num_tokens", "assistant_early_exit", "is_assistant"),
        "the engine computes every token itself",
    ),
    **dict.fromkeys(
        ("cache_implementation", "cache_config", "max_cache_len"),
        "the engine has a cache of its own",
    ),
    **dict.fromkeys(("output_attentions", "output_hidden_states"), "the engine has no such output"),
    "guidance_scale": "it would run the model without the engine for every token",
    "dola_layers": "it reads the logits of earlier layers",
    "token_healing": "it changes the prompt after the engine got it",
}
"""Fields of transformers' GenerationConfig that the engine refuses, with the reason. It supports
all others."""
UNSUPPORTED_IN_TASKS = UNSUPPORTED | {
    **dict.fromkeys(RETURNED, "a task takes texts alone"),
    "max_time": "texts would depend on the machine and on the batch",
    "num_return_sequences": "a task asks for several answers by its own `repeats`",
}
"""The same for requests of lm-eval."""
SET_BY_LM_EVAL = ("use_cache", "pad_token_id")
"""Options that lm-eval passes to `generate` itself, so that a task cannot."""
_COUNTED = ("num_beams", "num_beam_groups", "guidance_scale", "num_return_sequences")
"""Fields that 1 turns off."""


def unsupported(config: Any, reasons: Mapping[str, str] = UNSUPPORTED) -> str | None:
    """A sentence that names the first field that is not supported, and says why; None: all are.

    Args:
        config: has the fields of a GenerationConfig, or some of them.
        reasons: `UNSUPPORTED` or `UNSUPPORTED_IN_TASKS`.
    """
    for name, reason in reasons.items():
        value = getattr(config, name, None)
        if value and not (name in _COUNTED and value == 1):
            return f"{name}={value} is not supported: {reason}."
    return None


_SAMPLING = -1
"""Routing sample and layer in the keys of sampling noise. No router uses them."""
NEAR = 1e-4
"""Two log-probabilities this close are a near tie in any dtype. Float32 passes of other shapes
differ by less."""


def generation_config(model: Any, options: dict[str, Any]) -> GenerationConfig:
    """The model's own generation settings overridden by a task's `options`, merged as
    `model.generate` merges them.

    Raises ConfigError for an option unknown to transformers, and for a field that tasks do not
    support.
    """
    check_task_options(options)
    merged = SimpleNamespace(**(vars(model.generation_config) | options))
    refused = unsupported(merged, UNSUPPORTED_IN_TASKS)
    if refused:
        raise ConfigError(
            f"{refused} It is in the model's generation_config.json: remove it there."
        )
    config, unknown = internals.generation_config(model, **options)
    if unknown:
        raise ConfigError(
            f"Unknown generation options: {', '.join(sorted(unknown))} (see gen_kwargs)."
        )
    return config


def check_task_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for a generation option of a task that is not supported."""
    for name in SET_BY_LM_EVAL:
        if name in options:
            raise ConfigError(
                f"{name}={options[name]}: lm-eval sets it itself. Leave it out of gen_kwargs."
            )
    refused = unsupported(SimpleNamespace(**options), UNSUPPORTED_IN_TASKS)
    if refused:
        raise ConfigError(f"{refused} Leave it out of gen_kwargs.")


def has_processors(model: Any, config: GenerationConfig) -> bool:
    """Whether `generate` builds logits processors for these settings, whose special tokens are
    prepared here."""
    internals.prepare_special_tokens(model, config)
    return bool(internals.logits_processors(model, config, prompt=[0]))


class Sampler:
    """Chooses next tokens greedily, or by sampling with keyed noise, which depends on no batch and
    no order.

    Logits processors are those of `config`, for each prompt alone: some of them count its tokens.
    """

    def __init__(self, model: Any, config: GenerationConfig, seed: int):
        self.model = model
        self.config = config
        self.sample = bool(config.do_sample)
        self.seed = seed
        self._processors: dict[int, LogitsProcessorList] = {}
        """By number of the request."""
        self.epsilon = torch.finfo(model.dtype).eps
        self.near_ties = 0
        """Greedy choices between two tokens whose scores were closer than `near`."""

    def __call__(self, scores_AV: Tensor, states: list[GenerationState]) -> list[int]:
        """The next token of each sequence. Raises RoutingError where scores are NaN.

        The tokens' log-probabilities are added to `log_probability` of their sequences.

        The host reads the device once: tokens, bits of log-probabilities, near ties and whether
        there is a NaN in one tensor.
        """
        nan = scores_AV.isnan().any()
        given_AV = scores_AV
        scores_AV = self.processed(scores_AV, states)
        if self.sample:
            token_A = (scores_AV + self._noise(scores_AV, states)).argmax(dim=-1)
            near_ties = torch.zeros_like(nan)
        else:
            best_A2 = scores_AV.topk(2, dim=-1)
            token_A = best_A2.indices[:, 0]
            difference_A = best_A2.values[:, 0] - best_A2.values[:, 1]
            near_ties = (difference_A < near(scores_AV, self.epsilon)).sum()
        bits_A = _log_probs(given_AV, token_A).view(torch.int32).to(token_A)
        read = torch.cat([token_A, bits_A, near_ties[None], nan[None]]).tolist()
        *numbers, tie_count, has_nan = read
        if has_nan:
            raise RoutingError("The model's logits are NaN. Try dtype=bfloat16 or dtype=float32.")
        self.near_ties += tie_count
        tokens = numbers[: len(states)]
        log_probs = np.array(numbers[len(states) :], dtype=np.int32).view(np.float32)
        for state, log_prob in zip(states, log_probs.tolist(), strict=True):
            state.log_probability += log_prob
        return tokens

    @cached_property
    def _has_processors(self) -> bool:
        """Whether the settings have logits processors, which depends on no prompt."""
        return has_processors(self.model, self.config)

    def processed(self, scores_AV: Tensor, states: list[GenerationState]) -> Tensor:
        """float32 [A, V]: the scores after the logits processors."""
        if not self._has_processors:
            return scores_AV
        rows = []
        for scores_V, state in zip(scores_AV, states, strict=True):
            if state.index not in self._processors:
                processors = internals.logits_processors(self.model, self.config, state.prompt)
                self._processors[state.index] = processors
            ids = torch.tensor([state.ids], device=scores_V.device)
            rows.append(self._processors[state.index](ids, scores_V[None].clone()))
        return torch.cat(rows)

    def _noise(self, scores_AV: Tensor, states: list[GenerationState]) -> Tensor:
        """Gumbel noise float32 [A, V]: the argmax of scores plus noise is a sample of their
        softmax."""
        device = scores_AV.device
        keys = [(state.noise_key, state.sample_index, state.position) for state in states]
        noise_key_A, sample_index_A, position_A = torch.tensor(keys, device=device).unbind(1)
        layer_L = torch.tensor([_SAMPLING], device=device)
        row_A = torch.full_like(noise_key_A, _SAMPLING)
        return gumbel_for_tokens(
            self.seed, noise_key_A, sample_index_A, row_A, position_A, layer_L, scores_AV.shape[-1]
        )[0]


def _log_probs(scores_AV: Tensor, token_A: Tensor) -> Tensor:
    """float32 [A]: the log-probability of each sequence's token under the softmax of its scores."""
    scores_AV = scores_AV.float()
    chosen_A = scores_AV.gather(1, token_A.to(scores_AV.device)[:, None])[:, 0]
    return chosen_A - scores_AV.logsumexp(dim=-1)


def near(scores_AV: Tensor, epsilon: float) -> Tensor:
    """float32 [A]: two scores closer than this may change their order in passes of other batch
    shapes.

    The model rounds a logit of size l to `epsilon` * l. The span of the finite scores is used as l:
    it is the same for logits and for log-probabilities, which averaged samples have. In bfloat16
    99% of the differences between shapes are below it (tiny on toy_math, 1,904 tokens).
    """
    highest_A = scores_AV.amax(dim=-1)
    lowest_A = scores_AV.masked_fill(scores_AV == -torch.inf, torch.inf).amin(dim=-1)
    return (epsilon * (highest_A - lowest_A)).clamp(min=NEAR)


class StoppingCriteria:
    """Ends a sequence at an end token, or when its text contains a stop string.

    Stop strings, also those of `config`, are searched in the last tokens only: the tokens of the
    longest one, and two more.

    Args:
        max_length: tokens at which a sequence ends, its prompt included; None: any number.
    """

    def __init__(
        self,
        tokenizer: Any,
        stop: list[str],
        config: GenerationConfig,
        max_length: int | None = None,
    ):
        self.max_length = max_length
        self.tokenizer = tokenizer
        self.end_tokens = set(_as_list(config.eos_token_id))
        stop_strings = stop + _as_list(config.stop_strings)
        self.stop = [text for text in stop_strings if text]
        lengths = [len(tokenizer.encode(text, add_special_tokens=False)) for text in self.stop]
        self.window = max(lengths, default=0) + 2
        """Last tokens in which stop strings are searched."""

    def __call__(self, state: GenerationState) -> bool:
        """Whether the newest token ends the sequence."""
        if state.generated[-1] in self.end_tokens:
            return True
        if self.max_length is not None and len(state.ids) >= self.max_length:
            return True
        text = self.tokenizer.decode(state.generated[-self.window :])
        return any(stop in text for stop in self.stop)


def _as_list(value: Any) -> list:
    """A field of a GenerationConfig, None, a value or a list of values, as a list; empty for
    None."""
    if value is None:
        return []
    if isinstance(value, list):
        return value
    return [value]


@dataclass
class Decoding:
    """How sequences are continued: sampling, stopping criteria and length."""

    sampler: Callable[[Tensor, list[GenerationState]], list[int]]
    """Chooses the next token of each sequence from its scores [A, V]: `Sampler`."""
    stop: Callable[[GenerationState], bool]
    """Whether the generated tokens end a sequence: `StoppingCriteria`."""
    max_new_tokens: int
    together: bool = False
    """Whether all sequences are in one batch as far as the memory allows, also where their lengths
    differ much."""

    def extend(self, states: list[GenerationState], scores_AV: Tensor) -> None:
        """Append the next token to each sequence."""
        for state, token in zip(states, self.sampler(scores_AV, states), strict=True):
            state.generated.append(token)

    def ended(self, states: list[GenerationState]) -> list[bool]:
        """Whether each of the unfinished sequences of a batch ends with its newest token."""
        ended = []
        for state in states:
            is_full = len(state.generated) >= self.max_new_tokens
            ended.append(is_full or self.stop(state))
        return ended
