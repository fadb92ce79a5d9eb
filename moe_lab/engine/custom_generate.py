"""The engine as the decoding loop of `model.generate(..., custom_generate=...)`.

transformers prepares inputs, logits processors and stopping criteria; the engine computes the scores of next tokens.

B = sequences, S = tokens of the longest prompt, A = unfinished sequences, V = vocabulary.
"""

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

    With `return_dict_in_generate` they are the `sequences` of an output, which has with `output_logits` the ensemble's
    next-token scores (`logits`), and with `output_scores` these after the logits processors (`scores`): one float32
    [B, V] for each new token.

    The arguments are those with which `model.generate` calls its decoding loop. Logits processors and stopping criteria
    get the whole batch, as transformers' own loop has it: finished sequences and padding included. An engine may
    generate sequences one after the other (recurrent models, a batch that the memory cannot hold). Then those that have
    not begun are given as finished ones, and criteria that count their calls count those of all parts.

    Sampling is keyed by `seed`, the prompt and the number of the answer (with `num_return_sequences`). `texts` are the
    prompts' texts; None: as `tokenizer` decodes them.

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
    if isinstance(streamer, TextStreamer) and streamer.skip_prompt:
        _show_prompt(streamer, prompts[0])
    sampler = _PreparedSampler(model, config, seed, logits_processor, input_ids, streamer, states)
    decoding = _PreparedDecoding(sampler, stopping_criteria, states, config.max_length - S)
    with torch.enable_grad():  # `generate` disables gradients, and an engine may optimize by them
        engine.generate(states, decoding, lambda state: None)
    if streamer is not None:
        streamer.end()
    generated = [state.generated for state in states]
    width, pad = max(map(len, generated)), pad_token(config)
    if pad is None and any(len(each) < width for each in generated):
        raise ValueError("Sequences of different lengths need pad_token_id=.")
    new = [each + [pad or 0] * (width - len(each)) for each in generated]  # on the right
    ids = torch.cat([input_ids, torch.tensor(new, device=input_ids.device)], dim=1)
    if not config.return_dict_in_generate:
        return ids
    kept = {name: _by_step(rows, len(states), pad or 0) for name, rows in sampler.kept.items()}
    return GenerateDecoderOnlyOutput(sequences=ids, **kept)


def _show_prompt(streamer: TextStreamer, prompt: list[int]) -> None:
    """Let a streamer decode the new tokens after the prompt, which it does not print.

    Decoded alone, they may lose the blank at their beginning (`moe_lab.models.new_text`).
    """
    text = streamer.tokenizer.decode(prompt, **streamer.decode_kwargs)
    streamer.token_cache = list(prompt)
    streamer.print_len = len(text)


def next_scores(engine: Engine, prompts: Sequence[Sequence[int]], texts: Sequence[str]) -> Tensor:
    """float32 [B, V]: `Ensemble.next_scores` of the token after each prompt (token ids, and their texts)."""
    states = [
        GenerationState(b, prompt, document_key(prompt), text=text)
        for b, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
    ]
    found: dict[int, Tensor] = {}

    def take(scores_AV: Tensor, states: list[GenerationState]) -> list[int]:
        found.update(
            (state.index, scores_V) for state, scores_V in zip(states, scores_AV, strict=True)
        )
        return [0] * len(states)  # the only new token, which is not used

    engine.generate(
        states, Decoding(take, lambda generated: True, max_new_tokens=1), lambda state: None
    )
    return torch.stack([found[b] for b in range(len(prompts))])


class _PreparedSampler(Sampler):
    """Chooses tokens by logits processors that `model.generate` has prepared, which get all prompts and their padding.

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
        self.states, self.pad = states, pad_token(config) or 0
        self.processors = processors
        self.prompts, self.device, self.streamer = prompts_BS.tolist(), prompts_BS.device, streamer
        wanted = {"scores": config.output_scores, "logits": config.output_logits}
        self.kept: dict[str, dict[tuple[int, int], Tensor]] = {
            name: {} for name, is_wanted in wanted.items() if is_wanted
        }
        """By field of the output, scores [V] by sequence and step. An engine may generate sequences one by one."""

    def __call__(self, scores_AV: Tensor, states: list[GenerationState]) -> list[int]:
        tokens = super().__call__(scores_AV, states)
        if self.streamer is not None:
            self.streamer.put(torch.tensor(tokens))
        return tokens

    def processed(self, scores_AV: Tensor, states: list[GenerationState]) -> Tensor:
        """Processors expect a row for each sequence of the batch. Rows of finished ones are filled and ignored."""
        processed_AV = scores_AV
        if self.processors:
            ids_BS, rows = self.batch_ids(states), [state.index for state in states]
            scores_BV = scores_AV[:1].to(self.device).repeat(len(ids_BS), 1)
            scores_BV[rows] = scores_AV.to(self.device)
            processed_AV = self.processors(ids_BS, scores_BV)[rows]
        for name, found_AV in (("logits", scores_AV), ("scores", processed_AV)):
            if name in self.kept:
                for scores_V, state in zip(found_AV, states, strict=True):
                    self.kept[name][state.index, len(state.generated)] = scores_V.detach().clone()
        return processed_AV

    def batch_ids(self, unfinished: Sequence[GenerationState]) -> Tensor:
        """int64 [B, S + generated tokens] of the whole batch; finished sequences are padded on the right.

        The unfinished ones have the same number of generated tokens.
        """
        count = len(unfinished[0].generated)
        rows = []
        for state, prompt in zip(self.states, self.prompts, strict=True):
            new = state.generated[:count]
            rows.append([*prompt, *new, *[self.pad] * (count - len(new))])
        return torch.tensor(rows, device=self.device)

    def scores_at(self, step: int) -> Tensor:
        """float32 [B, V]: the scores after the logits processors, with `output_scores`."""
        return _at_step(self.kept["scores"], len(self.states), self.pad, step)


class _PreparedDecoding(Decoding):
    """Ends sequences by stopping criteria that `model.generate` has prepared, which get the whole batch."""

    def __init__(
        self,
        sampler: _PreparedSampler,
        criteria: StoppingCriteriaList,
        states: list[GenerationState],
        max_new_tokens: int,
    ):
        super().__init__(sampler, lambda state: False, max_new_tokens, together=True)
        self.prepared, self.criteria = sampler, criteria
        self._scores: list[Tensor] = []
        """Of each step so far [B, V]."""

    def ended(self, states: list[GenerationState]) -> list[bool]:
        step = len(states[0].generated) - 1
        scores = None
        if "scores" in self.prepared.kept:
            self._scores[step:] = [self.prepared.scores_at(step)]
            scores = tuple(self._scores)
        stopped_B: Any = self.criteria(self.prepared.batch_ids(states), scores)  # type: ignore[arg-type]
        ends = super().ended(states)
        return [
            is_last or bool(stopped_B[state.index])
            for is_last, state in zip(ends, states, strict=True)
        ]


def _by_step(rows: dict[tuple[int, int], Tensor], sequences: int, pad: int) -> tuple[Tensor, ...]:
    """One float32 [B, V] for each new token, as transformers returns them."""
    count = 1 + max(step for _, step in rows)
    return tuple(_at_step(rows, sequences, pad, step) for step in range(count))


def _at_step(rows: dict[tuple[int, int], Tensor], sequences: int, pad: int, step: int) -> Tensor:
    """float32 [B, V] for one new token.

    A sequence that has ended has log-probability 0 at the padding token and -inf elsewhere, so that sums over a
    sequence are those of its own tokens.
    """
    ended_V = torch.full_like(next(iter(rows.values())), -torch.inf)
    ended_V[pad] = 0.0
    return torch.stack([rows.get((b, step), ended_V) for b in range(sequences)])


def _check(
    config: GenerationConfig, model_kwargs: Mapping[str, Any], streamer: Any, sequences: int
) -> None:
    """Raise ValueError for an argument that would have no effect."""
    alone = [
        name
        for name in RETURNED[1:]
        if getattr(config, name) and not config.return_dict_in_generate
    ]
    unknown = [
        key for key in model_kwargs if key not in _PREPARED and model_kwargs[key] is not None
    ]
    cache = model_kwargs.get(CACHE)
    if refused := unsupported(config):
        raise ValueError(f"{refused} Leave it out.")
    problems = [
        alone and f"{alone[0]}=True has no effect without return_dict_in_generate=True.",
        unknown
        and f"The ensemble takes no {', '.join(unknown)}: it reads token ids alone. Leave it out.",
        cache is not None
        and cache.get_seq_length()
        and f"The ensemble reads whole prompts: give no {CACHE} that holds tokens.",
        streamer is not None
        and sequences > 1
        and f"A streamer takes one sequence, and {sequences} are generated.",
    ]
    if problem := next(filter(None, problems), None):
        raise ValueError(problem)


def _without_padding(input_ids: Tensor, model_kwargs: Mapping[str, Any]) -> list[list[int]]:
    """The prompts as token ids. Raises ValueError for padding after or within a prompt, and for other positions."""
    mask = model_kwargs.get("attention_mask")
    real_BS = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.bool()
    if real_BS.shape != input_ids.shape or not (real_BS == real_BS.cummax(dim=1).values).all():
        raise ValueError(
            "Pad prompts of different lengths on the left (tokenizer.padding_side='left')."
        )
    if not real_BS[:, -1].all():
        raise ValueError(
            "A prompt has no token. Give at least one, e.g. that of the beginning of a text."
        )
    positions = model_kwargs.get("position_ids")
    if positions is not None and not (positions == real_BS.cumsum(dim=1) - 1)[real_BS].all():
        raise ValueError(
            "The ensemble counts positions from 0 in each prompt: give no position_ids."
        )
    return [ids[real].tolist() for ids, real in zip(input_ids, real_BS, strict=True)]
