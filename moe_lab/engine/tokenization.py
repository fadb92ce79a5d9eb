"""Tokenization of lm-eval's requests, truncated to the model's window as by its own `hf` model."""

from __future__ import annotations

from typing import Any

from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from moe_lab.errors import ConfigError


class Encoder:
    """The tokenization of an `lm_eval.models.huggingface.HFLM`."""

    def __init__(self, lm: Any):
        self.lm = lm
        self.cut = 0
        """Contexts and prompts so far that lost their beginning."""

    def pair(self, context: str, continuation: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Token ids of a context and its continuation. A context that is too long loses its beginning.

        Raises ConfigError for a continuation that is empty or longer than the model's input.
        """
        lm = self.lm
        if context == "":
            ids = lm.tok_encode(continuation, add_special_tokens=False)
            if ids[0] == lm.prefix_token_id:
                context_ids, ids = ids[:1], ids[1:]
            else:
                context_ids = [lm.prefix_token_id]
        else:
            context_ids, ids = lm._encode_pair(context, continuation)
        return self._truncated(context_ids, ids)

    def windows(self, text: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """A text in windows of at most `max_length` tokens: (context, tokens to score)."""
        windows = get_rolling_token_windows(
            token_list=self.lm.tok_encode(text),
            prefix_token=self.lm.prefix_token_id,
            max_seq_len=self.lm.max_length,
            context_len=1,
        )
        return [self._truncated(*make_disjoint_window(window)) for window in windows]

    def prompt(self, text: str, room: int | None) -> list[int]:
        """The last `room` tokens of a prompt; None: all. An empty prompt is the beginning-of-text token."""
        (ids,), _ = self.lm.tok_batch_encode([text], truncation=self.lm.truncation)
        if room is not None and len(ids) > room:
            self.cut += 1
            ids = ids[-room:]
        return ids.tolist() or [self.lm.prefix_token_id]

    def _truncated(
        self, context: list[int], continuation: list[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        most = self.lm.max_length
        if not 0 < len(continuation) <= most:
            raise ConfigError(
                f"A continuation to score has {len(continuation)} tokens; it must have between 1 and "
                f"{most} (max_length)."
            )
        room = most + 1 - len(continuation)
        self.cut += len(context) > room
        return tuple(context[-room:]), tuple(continuation)
