"""The engine as the decoding loop of `model.generate(..., custom_generate=...)`.

transformers prepares inputs, logits processors and stopping criteria; the engine computes the scores of next tokens.

B = sequences, S = tokens of the longest prompt, A = unfinished sequences, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import GenerateDecoderOnlyOutput

from moe_lab.engine.engine import Engine
from moe_lab.engine.prefill import GenerationState
from moe_lab.engine.sampling import RETURNED, Decoding, Sampler, unsupported
from moe_lab.models.transformers_internals import pad_token
from moe_lab.routing.noise import document_key

_PREPARED = {"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep"}
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

    With `return_dict_in_generate` they are the `sequences` of an output, which has with `output_logits` the ensemble's
    next-token scores (`logits`), and with `output_scores` these after the logits processors (`scores`): one float32
    [B, V] for each new token.

    The arguments are those with which `model.generate` calls its decoding loop. Logits processors and stopping criteria
    get each sequence as transformers' own loop has it, padding included. Sampling is keyed by `seed`, the prompt and
    the number of the answer (with `num_return_sequences`). `texts` are the prompts' texts; None: as `tokenizer` decodes
    them.

    Raises ValueError for what the engine does not support.
    """
    model_kwargs = model_kwargs or {}
    _check(config, model_kwargs, streamer, len(input_ids))
    S, answers = input_ids.shape[1], config.num_return_sequences or 1
    prompts = _without_padding(input_ids, model_kwargs)
    texts = tokenizer.batch_decode(prompts) if texts is None else texts
    states = [
        GenerationState(b, prompt, document_key(prompt), b % answers, text)
        for b, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
    ]
    padded = _Padded(input_ids.tolist(), input_ids.device)
    sampler = _PaddedSampler(model, config, seed, logits_processor, padded)
    decoding = _PaddedDecoding(sampler, stopping_criteria, config.max_length - S, padded, streamer)
    with torch.enable_grad():  # `generate` disables gradients, and an engine may optimize by them
        engine.generate(states, decoding, lambda state: None)
    if streamer is not None:
        streamer.end()
    ids = _padded_right(input_ids, [state.generated for state in states], config)
    if not config.return_dict_in_generate:
        return ids
    pad = pad_token(config) or 0
    kept = {name: None if one is None else one.steps(len(states), pad) for name, one in sampler.kept.items()}
    return GenerateDecoderOnlyOutput(sequences=ids, **kept)


def next_scores(engine: Engine, prompts: Sequence[Sequence[int]], texts: Sequence[str]) -> Tensor:
    """float32 [B, V]: `Ensemble.next_scores` of the token after each prompt (token ids, and their texts)."""
    states = [
        GenerationState(b, prompt, document_key(prompt), text=text)
        for b, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
    ]
    found: dict[int, Tensor] = {}

    def take(scores_AV: Tensor, states: list[GenerationState]) -> list[int]:
        found.update((state.index, scores_V) for state, scores_V in zip(states, scores_AV, strict=True))
        return [0] * len(states)

    engine.generate(states, Decoding(take, lambda generated: True, max_new_tokens=1), lambda state: None)
    return torch.stack([found[b] for b in range(len(prompts))])


class _Padded:
    """Sequences with their prompts padded on the left."""

    def __init__(self, prompts: list[list[int]], device: torch.device):
        self.prompts, self.device = prompts, device

    def ids(self, states: Sequence[GenerationState]) -> Tensor:
        """int64 [A, S + generated tokens]; all states have the same number of generated tokens."""
        rows = [[*self.prompts[state.index], *state.generated] for state in states]
        return torch.tensor(rows, device=self.device)

    def all_ids(self, states: Sequence[GenerationState]) -> Tensor:
        """int64 [B, S + generated tokens]: `ids` in the rows of their sequences; other rows repeat the first."""
        ids_AS = self.ids(states)
        all_BS = ids_AS[:1].repeat(len(self.prompts), 1)
        all_BS[[state.index for state in states]] = ids_AS
        return all_BS


class _PaddedSampler(Sampler):
    """Chooses tokens by logits processors that `model.generate` has prepared."""

    def __init__(
        self,
        model: Any,
        config: GenerationConfig,
        seed: int,
        processors: LogitsProcessorList,
        padded: _Padded,
    ):
        super().__init__(model, config, seed, processors)
        self.padded = padded
        self.kept = {
            "scores": KeptScores() if config.output_scores else None,
            "logits": KeptScores() if config.output_logits else None,
        }
        """By field of the output; None: not wanted."""

    def __call__(self, scores_AV: Tensor, states: list[GenerationState]) -> list[int]:
        self._keep("logits", scores_AV, states)
        if not self.processors:
            self._keep("scores", scores_AV, states)
        return super().__call__(scores_AV, states)

    def _keep(self, name: str, scores_AV: Tensor, states: list[GenerationState]) -> None:
        kept = self.kept[name]
        if kept is not None:
            kept.keep(scores_AV, states)

    def processed(self, scores_AV: Tensor, states: list[GenerationState]) -> Tensor:
        """Processors expect a row for each sequence of the batch. Rows of finished ones are filled and ignored."""
        ids_BS, rows = self.padded.all_ids(states), [state.index for state in states]
        scores_BV = scores_AV[:1].to(ids_BS.device).repeat(len(ids_BS), 1)
        scores_BV[rows] = scores_AV.to(ids_BS.device)
        processed_AV = self.processors(ids_BS, scores_BV)[rows]
        self._keep("scores", processed_AV, states)
        return processed_AV


class _PaddedDecoding(Decoding):
    """Ends sequences by stopping criteria that `model.generate` has prepared."""

    def __init__(
        self,
        sampler: Sampler,
        criteria: StoppingCriteriaList,
        max_new_tokens: int,
        padded: _Padded,
        streamer: Any,
    ):
        super().__init__(sampler, lambda generated: False, max_new_tokens)
        self.criteria, self.padded, self.streamer = criteria, padded, streamer

    def extend(self, states: list[GenerationState], scores_AV: Tensor) -> None:
        super().extend(states, scores_AV)
        if self.streamer is not None:
            self.streamer.put(torch.tensor([state.generated[-1] for state in states]))

    def ends(self, state: GenerationState) -> bool:
        return super().ends(state) or bool(self.criteria(self.padded.ids([state]), None).all())


def _check(config: GenerationConfig, model_kwargs: Mapping[str, Any], streamer: Any, sequences: int) -> None:
    """Raise ValueError for an argument that would have no effect."""
    if problem := unsupported(config, returned=True):
        raise ValueError(problem)
    for name in RETURNED[1:]:
        if getattr(config, name) and not config.return_dict_in_generate:
            raise ValueError(f"{name}=True has no effect without return_dict_in_generate=True.")
    if unknown := [key for key in model_kwargs if key not in _PREPARED and model_kwargs[key] is not None]:
        raise ValueError(
            f"The ensemble takes no {', '.join(unknown)}: it reads token ids alone. Leave it out."
        )
    cache = model_kwargs.get("past_key_values")
    if cache is not None and cache.get_seq_length():
        raise ValueError("The ensemble reads whole prompts: give no past_key_values that hold tokens.")
    if streamer is not None and sequences > 1:
        raise ValueError(f"A streamer takes one sequence, and {sequences} are generated.")


def _without_padding(input_ids: Tensor, model_kwargs: Mapping[str, Any]) -> list[list[int]]:
    """The prompts as token ids. Raises ValueError for padding after or within a prompt, and for other positions."""
    mask = model_kwargs.get("attention_mask")
    real_BS = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.bool()
    if real_BS.shape != input_ids.shape or not (real_BS == real_BS.cummax(dim=1).values).all():
        raise ValueError(
            "Prompts of different lengths are padded on the left (tokenizer.padding_side='left')."
        )
    if not real_BS[:, -1].all():
        raise ValueError("A prompt has no token. Give at least one, e.g. that of the beginning of a text.")
    positions = model_kwargs.get("position_ids")
    if positions is not None and not (positions == real_BS.cumsum(dim=1) - 1)[real_BS].all():
        raise ValueError("The ensemble counts positions from 0 in each prompt: give no position_ids.")
    return [ids[real].tolist() for ids, real in zip(input_ids, real_BS, strict=True)]


def _padded_right(input_ids: Tensor, generated: list[list[int]], config: GenerationConfig) -> Tensor:
    width = max(map(len, generated))
    pad = pad_token(config)
    if any(len(each) < width for each in generated) and pad is None:
        raise ValueError("Sequences of different lengths need pad_token_id=.")
    new = [each + [pad or 0] * (width - len(each)) for each in generated]
    return torch.cat([input_ids, torch.tensor(new, device=input_ids.device)], dim=1)


class KeptScores:
    """The scores of `return_dict_in_generate=True`, by sequence and step.

    An engine may generate the sequences of a batch one by one.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], Tensor] = {}

    def keep(self, scores_AV: Tensor, states: Sequence[GenerationState]) -> None:
        """Keep the scores by which the next token of each sequence is chosen."""
        for scores_V, state in zip(scores_AV, states, strict=True):
            self._rows[state.index, len(state.generated)] = scores_V.detach().clone()

    def steps(self, sequences: int, pad: int) -> tuple[Tensor, ...]:
        """One float32 [B, V] for each new token, as transformers returns them.

        A sequence that has ended has log-probability 0 at the padding token and -inf elsewhere, so that sums over a
        sequence are those of its own tokens.
        """
        ended_V = torch.full_like(next(iter(self._rows.values())), -torch.inf)
        ended_V[pad] = 0.0
        count = 1 + max(step for _, step in self._rows)
        return tuple(
            torch.stack([self._rows.get((b, step), ended_V) for b in range(sequences)])
            for step in range(count)
        )
