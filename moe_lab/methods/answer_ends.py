"""The token that ends an answer.

A fine-tuning has a loss on it, so that the trained model learns to stop.

Most chat templates write it after each answer (`<|im_end|>`). In some the marker of the next role
ends an answer (`<|user|>` in GLM-4), so the last answer of a conversation has none, and in some
`{% generation %}` leaves it out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig

from moe_lab.config.schema import Config
from moe_lab.errors import ModelError, reading
from moe_lab.models.source import load_config, model_folder

_ANSWER = "Answer7391"
"""An answer that is found again in the text of a conversation."""


@dataclass(frozen=True, kw_only=True)
class AnswerEnd:
    """How the answers of a chat template end."""

    token: int | None
    """The token that the template writes after an answer; None: it writes none that could end
    generation."""
    closing: tuple[int, ...]
    """Tokens up to `token` that the template writes after an answer when another turn follows.
    Empty where it ends the last answer of a conversation by itself."""
    model_ends: frozenset[int]
    """Tokens that end generation of the model before training."""

    @property
    def tokens(self) -> frozenset[int]:
        """All tokens that end an answer."""
        return self.model_ends if self.token is None else self.model_ends | {self.token}

    @property
    def is_new(self) -> bool:
        """Whether generation of the model does not stop at the token before training."""
        return self.token is not None and self.token not in self.model_ends


def end_tokens(config: Config, tokenizer: Any) -> frozenset[int]:
    """The tokens that end generation: those of generation_config.json, else of config.json, and the
    tokenizer's end token; empty if none of them names one."""
    file = model_folder(config.model, offline=config.offline) / "generation_config.json"
    if file.is_file():
        with reading(file, "Correct or delete it.", raises=ModelError):
            ids = GenerationConfig.from_pretrained(file.parent, local_files_only=True).eos_token_id
    else:
        ids = load_config(config.model, offline=config.offline).get_text_config().eos_token_id
    tokens = set(ids if isinstance(ids, list) else [ids])
    tokens.add(tokenizer.eos_token_id)
    return frozenset(tokens - {None})


def answer_end(tokenizer: Any, model_ends: frozenset[int]) -> AnswerEnd:
    """How the answers of the tokenizer's chat template end, found by rendering a question and an
    answer.

    Args:
        model_ends: `end_tokens` of the model.
    """
    turns = [{"role": "user", "content": "Question"}, {"role": "assistant", "content": _ANSWER}]
    after_last = _after_answer(tokenizer, turns)
    length = length_to_end(tokenizer, after_last, 0, model_ends)
    if length:
        return AnswerEnd(token=after_last[length - 1], closing=(), model_ends=model_ends)
    after = _after_answer(tokenizer, [*turns, turns[0]])
    length = length_to_end(tokenizer, after, 0, model_ends)
    closing = tuple(after[:length])
    return AnswerEnd(token=closing[-1] if closing else None, closing=closing, model_ends=model_ends)


def _after_answer(tokenizer: Any, turns: list[dict[str, str]]) -> list[int]:
    """The tokens after the answer in the text of a conversation; empty if the template changes the
    answer."""
    text = tokenizer.apply_chat_template(turns, tokenize=False)
    if _ANSWER not in text:
        return []
    end = text.rfind(_ANSWER) + len(_ANSWER)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    after = []
    for token, (first, _) in zip(encoded.input_ids, encoded.offset_mapping, strict=True):
        if first >= end:
            after.append(token)
    return after


def length_to_end(tokenizer: Any, ids: Sequence[int], start: int, ends: frozenset[int]) -> int:
    """The number of tokens from `start` through the first token that can end generation.

    Such a token is one of `ends` or a token that was added to the vocabulary, like the markers of
    roles. 0 if there is none, or if text stands in front of it.
    """
    for position in range(start, len(ids)):
        token = ids[position]
        if token in ends:
            return position + 1 - start
        if not is_blank(tokenizer, token):
            is_added = token in tokenizer.added_tokens_decoder
            return position + 1 - start if is_added else 0
    return 0


def is_blank(tokenizer: Any, token: int) -> bool:
    """Whether a token is white space."""
    return not tokenizer.decode([token]).strip()


def stop_at(model: Any, token: int) -> None:
    """From now on generation of the model ends at this token, too."""
    ids = model.generation_config.eos_token_id
    if ids is None:
        ids = []
    elif isinstance(ids, int):
        ids = [ids]
    model.generation_config.eos_token_id = [*ids, token]
