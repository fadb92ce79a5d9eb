"""The engine as the decoding loop of `model.generate(..., custom_generate=...)`.

transformers prepares inputs, logits processors and stopping criteria; the engine computes the
scores of next tokens.

B = sequences, S = tokens of the longest prompt, A = unfinished sequences, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList, TextStreamer
from transformers.generation import GenerateDecoderOnlyOutput

from moe_lab.engine.engine import Engine
from moe_lab.engine.sampling import RETURNED, Decoding, GenerationState, Sampler, unsupported
from moe_lab.models.transformers_internals import pad_token
from moe_lab.routing.noise import document_key
from moe_lab.routing.passes import CACHE

_PREPARED = {"attention_mask", "position_ids", CACHE, "use_cache", "logits_to_keep"}
"""Inputs that transformers prepares for every model."""


def custom_generate(
    engine: Engine,
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    config: GenerationConfig,
    *,
    seed: int,
    tokenizer: Any,
    texts: Sequence[str] | None = None,
    streamer: Any = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> Tensor | GenerateDecoderOnlyOutput:
    """int64 [B, S + new tokens]: prompts, padded on the left, and new tokens, padded on the right.

    With `return_dict_in_generate` they are the `sequences` of an output, which has with
    `output_logits` the ensemble's next-token scores (`logits`), and with `output_scores` these
    after the logits processors (`scores`): one float32 [B, V] for each new token.

    The arguments are those with which `model.generate` calls its decoding loop. Logits processors
    and stopping criteria get the whole batch, as transformers' own loop has it: finished sequences
    and padding included. An engine may generate sequences one after the other (recurrent models, a
    batch that the memory cannot hold). Then those that have not begun are given as finished ones,
    and criteria that count their calls count those of all parts.

    Sampling is keyed by `seed`, the prompt and the number of the answer (with
    `num_return_sequences`). `texts` are the prompts' texts; None: as `tokenizer` decodes them.

    Raises ValueError for what the engine does not support.
    """
    model_kwargs = model_kwargs or {}
    _check(config, model_kwargs, streamer, len(input_ids))
    prompts = _without_padding(input_ids, model_kwargs)
    if texts is None:
        texts = tokenizer.batch_decode(prompts)
    states = _states(prompts, texts, config.num_return_sequences or 1)
    if isinstance(streamer, TextStreamer) and streamer.skip_prompt:
        _show_prompt(streamer, prompts[0])
    sampler = _PreparedSampler(model, config, seed, logits_processor, input_ids, streamer, states)
    max_new_tokens = config.max_length - input_ids.shape[1]
    decoding = _PreparedDecoding(sampler, stopping_criteria, states, max_new_tokens)
    with torch.enable_grad():  # `generate` disables gradients, and an engine may optimize by them
        engine.generate(states, decoding, lambda state: None)
    if streamer is not None:
        streamer.end()

    new_ids = _padded([state.generated for state in states], pad_token(config))
    sequences = torch.cat([input_ids, torch.tensor(new_ids, device=input_ids.device)], dim=1)
    if not config.return_dict_in_generate:
        return sequences
    scores = {}
    for name, rows in sampler.kept.items():
        scores[name] = _by_step(rows, len(states), sampler.pad)
    return GenerateDecoderOnlyOutput(sequences=sequences, **scores)


def _states(
    prompts: Sequence[Sequence[int]], texts: Sequence[str], answers_per_prompt: int
) -> list[GenerationState]:
    """The states before the first new token.

    Args:
        prompts: token ids. A prompt with several answers is there once for each, one after the
            other.
        texts: of the prompts.
    """
    states = []
    for b, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        answer = b % answers_per_prompt
        states.append(GenerationState(b, prompt, document_key(prompt), answer, text))
    return states


def _padded(generated: list[list[int]], pad: int | None) -> list[list[int]]:
    """New tokens, padded on the right. Raises ValueError where there is padding and no token for
    it."""
    width = max(len(tokens) for tokens in generated)
    rows = []
    for tokens in generated:
        padding = width - len(tokens)
        if padding and pad is None:
            raise ValueError("Sequences of different lengths need pad_token_id=.")
        rows.append(tokens + [pad or 0] * padding)
    return rows


def _show_prompt(streamer: TextStreamer, prompt: list[int]) -> None:
    """Let a streamer decode the new tokens after the prompt, which it does not print.

    Decoded alone, they may lose the blank at their beginning (`moe_lab.models.new_text`).
    """
    text = streamer.tokenizer.decode(prompt, **streamer.decode_kwargs)
    streamer.token_cache = list(prompt)
    streamer.print_len = len(text)


def next_scores(engine: Engine, prompts: Sequence[Sequence[int]], texts: Sequence[str]) -> Tensor:
    """float32 [B, V]: `Ensemble.next_scores` of the token after each prompt (token ids, and their
    texts)."""
    states = _states(prompts, texts, answers_per_prompt=1)
    scores_of: dict[int, Tensor] = {}

    def keep_scores(scores_AV: Tensor, states: list[GenerationState]) -> list[int]:
        for state, scores_V in zip(states, scores_AV, strict=True):
            scores_of[state.index] = scores_V
        unused_token = 0
        return [unused_token] * len(states)

    decoding = Decoding(keep_scores, lambda state: True, max_new_tokens=1)
    engine.generate(states, decoding, lambda state: None)
    return torch.stack([scores_of[b] for b in range(len(prompts))])


ScoresOfSteps = dict[tuple[int, int], Tensor]
"""Scores float32 [V] by sequence and step. An engine may generate sequences one by one."""


class _PreparedSampler(Sampler):
    """Chooses tokens by logits processors that `model.generate` has prepared, which get all prompts
    and their padding.

    Args:
        prompts_BS: padded on the left.
    """

    def __init__(
        self,
        model: Any,
        config: GenerationConfig,
        seed: int,
        processors: LogitsProcessorList,
        prompts_BS: Tensor,
        streamer: Any,
        states: list[GenerationState],
    ):
        super().__init__(model, config, seed)
        self.states = states
        self.pad = pad_token(config) or 0
        self.processors = processors
        self.prompts = prompts_BS.tolist()
        self.device = prompts_BS.device
        self.streamer = streamer
        self.kept: dict[str, ScoresOfSteps] = {}
        """By field of the output."""
        if config.output_scores:
            self.kept["scores"] = {}
        if config.output_logits:
            self.kept["logits"] = {}

    def __call__(self, scores_AV: Tensor, states: list[GenerationState]) -> list[int]:
        tokens = super().__call__(scores_AV, states)
        if self.streamer is not None:
            self.streamer.put(torch.tensor(tokens))
        return tokens

    def processed(self, scores_AV: Tensor, states: list[GenerationState]) -> Tensor:
        """Processors expect a row for each sequence of the batch. Rows of finished ones are filled
        and ignored."""
        processed_AV = scores_AV
        if self.processors:
            ids_BS = self.batch_ids(states)
            rows = [state.index for state in states]
            scores_BV = scores_AV[:1].to(self.device).repeat(len(ids_BS), 1)
            scores_BV[rows] = scores_AV.to(self.device)
            processed_AV = self.processors(ids_BS, scores_BV)[rows]
        self._keep("logits", scores_AV, states)
        self._keep("scores", processed_AV, states)
        return processed_AV

    def _keep(self, field: str, scores_AV: Tensor, states: list[GenerationState]) -> None:
        """Keep scores for a field of the output, if it has the field."""
        if field not in self.kept:
            return
        for scores_V, state in zip(scores_AV, states, strict=True):
            step = len(state.generated)
            self.kept[field][state.index, step] = scores_V.detach().clone()

    def batch_ids(self, unfinished: Sequence[GenerationState]) -> Tensor:
        """int64 [B, S + generated tokens] of the whole batch; finished sequences are padded on the
        right.

        The unfinished ones have the same number of generated tokens.
        """
        count = len(unfinished[0].generated)
        rows = []
        for state, prompt in zip(self.states, self.prompts, strict=True):
            new_ids = state.generated[:count]
            padding = [self.pad] * (count - len(new_ids))
            rows.append(prompt + new_ids + padding)
        return torch.tensor(rows, device=self.device)

    def scores_at(self, step: int) -> Tensor:
        """float32 [B, V]: the scores after the logits processors, with `output_scores`."""
        return _at_step(self.kept["scores"], len(self.states), self.pad, step)


class _PreparedDecoding(Decoding):
    """Ends sequences by stopping criteria that `model.generate` has prepared, which get the whole
    batch."""

    def __init__(
        self,
        sampler: _PreparedSampler,
        criteria: StoppingCriteriaList,
        states: list[GenerationState],
        max_new_tokens: int,
    ):
        super().__init__(sampler, lambda state: False, max_new_tokens, together=True)
        self.prepared = sampler
        self.criteria = criteria
        self._scores: list[Tensor] = []
        """Of each step so far [B, V]."""

    def ended(self, states: list[GenerationState]) -> list[bool]:
        """Whether each of the unfinished sequences ends, by its length or by the prepared
        criteria."""
        step = len(states[0].generated) - 1
        scores = None
        if "scores" in self.prepared.kept:
            self._scores[step:] = [self.prepared.scores_at(step)]
            scores = tuple(self._scores)
        ids = self.prepared.batch_ids(states)
        stopped_B: Any = self.criteria(ids, scores)  # type: ignore[arg-type]
        ended = []
        for is_last, state in zip(super().ended(states), states, strict=True):
            ended.append(is_last or bool(stopped_B[state.index]))
        return ended


def _by_step(rows: ScoresOfSteps, sequences: int, pad: int) -> tuple[Tensor, ...]:
    """One float32 [B, V] for each new token, as transformers returns them."""
    count = 1 + max(step for _, step in rows)
    return tuple(_at_step(rows, sequences, pad, step) for step in range(count))


def _at_step(rows: ScoresOfSteps, sequences: int, pad: int, step: int) -> Tensor:
    """float32 [B, V] for one new token.

    A sequence that has ended has log-probability 0 at the padding token and -inf elsewhere, so that
    sums over a sequence are those of its own tokens.
    """
    ended_V = torch.full_like(next(iter(rows.values())), -torch.inf)
    ended_V[pad] = 0.0
    return torch.stack([rows.get((b, step), ended_V) for b in range(sequences)])


def _check(
    config: GenerationConfig, model_kwargs: Mapping[str, Any], streamer: Any, sequences: int
) -> None:
    """Raise ValueError for an argument that would have no effect."""
    refused = unsupported(config)
    if refused:
        raise ValueError(f"{refused} Leave it out.")
    for name in RETURNED[1:]:
        if getattr(config, name) and not config.return_dict_in_generate:
            raise ValueError(f"{name}=True has no effect without return_dict_in_generate=True.")

    unknown = []
    for key, value in model_kwargs.items():
        # image-and-text models prepare empty outputs of their encoders for a text
        is_given = value is not None and value != {}
        if key not in _PREPARED and is_given:
            unknown.append(key)
    if unknown:
        raise ValueError(
            f"The ensemble takes no {', '.join(unknown)}: it reads token ids alone. Leave it out."
        )
    cache = model_kwargs.get(CACHE)
    if cache is not None and cache.get_seq_length():
        raise ValueError(f"The ensemble reads whole prompts: give no {CACHE} that holds tokens.")
    if streamer is not None and sequences > 1:
        raise ValueError(f"A streamer takes one sequence, and {sequences} are generated.")


def _is_left_padded(real_BS: Tensor) -> bool:
    """Whether no padding (False) follows a token of its sequence."""
    from_first_token_BS = real_BS.cummax(dim=1).values
    return torch.equal(real_BS, from_first_token_BS)


def _without_padding(input_ids: Tensor, model_kwargs: Mapping[str, Any]) -> list[list[int]]:
    """The prompts as token ids. Raises ValueError for padding after or within a prompt, and for
    other positions."""
    mask = model_kwargs.get("attention_mask")
    if mask is None:
        mask = torch.ones_like(input_ids)
    real_BS = mask.bool()
    if real_BS.shape != input_ids.shape or not _is_left_padded(real_BS):
        raise ValueError(
            "Pad prompts of different lengths on the left (tokenizer.padding_side='left')."
        )
    if not real_BS[:, -1].all():
        raise ValueError(
            "A prompt has no token. Give at least one, e.g. that of the beginning of a text."
        )
    positions = model_kwargs.get("position_ids")
    if positions is not None:
        counted_BS = real_BS.cumsum(dim=1) - 1
        is_counted = positions == counted_BS  # for each axis of positions, if there are several
        if not is_counted[..., real_BS].all():
            raise ValueError(
                "The ensemble counts positions from 0 in each prompt: give no position_ids."
            )
    return [ids[real].tolist() for ids, real in zip(input_ids, real_BS, strict=True)]
