"""Where the answers of a conversation are in its text.

A chat template may mark answers ({% generation %}). Otherwise they are located by rendering the
first turns. Some templates format earlier turns differently from the last one, for example without
their reasoning. Then the text of the first turns is no prefix of the whole text, and the answers
are not found.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from moe_lab.errors import ConfigError, TaskError
from moe_lab.methods.data_files import ANSWERER, Conversation, is_trained_on
from moe_lab.models.tokenizer import rendered
from moe_lab.models.transformers_internals import generation_blocks

Span = tuple[int, int]
"""The first character and the one after the last."""


class Located(NamedTuple):
    """The text of a conversation, and its answers to train on."""

    text: str
    answers: list[Span]


def located(tokenizer: Any, conversations: list[Conversation]) -> list[Located]:
    """The conversations whose answers to train on are found; the others are left out.

    Raises TaskError for a conversation that the chat template refuses.
    """
    is_marked = re.search(r"{%-?\s*generation\b", tokenizer.get_chat_template())
    locate = _marked_answers if is_marked else _rendered_answers
    with_answers = []
    for conversation in conversations:
        located_conversation = locate(tokenizer, conversation)
        if located_conversation is not None:
            with_answers.append(located_conversation)
    return with_answers


def _marked_answers(tokenizer: Any, conversation: Conversation) -> Located | None:
    """A conversation located by the marks of the chat template.

    None where an answer is not trained on and the template does not mark each answer once.
    """
    messages = _plain(conversation)
    text, blocks = _explained(
        conversation, tokenizer, lambda: generation_blocks(tokenizer, messages)
    )
    answers = [message for message in conversation if message["role"] == ANSWERER]
    if all(is_trained_on(answer) for answer in answers):
        return Located(text, blocks)
    if len(blocks) != len(answers):
        return None
    spans = []
    for block, answer in zip(blocks, answers, strict=True):
        if is_trained_on(answer):
            spans.append(block)
    return Located(text, spans)


def _rendered_answers(tokenizer: Any, conversation: Conversation) -> Located | None:
    """A conversation located by rendering its first turns; None where their text is no prefix of
    the whole text."""
    text = _applied(tokenizer, conversation, tokenize=False)
    spans = []
    for number, message in enumerate(conversation):
        if not is_trained_on(message):
            continue
        turns = conversation[: number + 1]
        before = _applied(tokenizer, turns[:-1], tokenize=False, add_generation_prompt=True)
        through = _applied(tokenizer, turns, tokenize=False).rstrip()
        if not text.startswith(before) or not text.startswith(through):
            return None
        spans.append((len(before), len(through)))
    return Located(text, spans)


def _applied(tokenizer: Any, conversation: Conversation, **options: Any) -> Any:
    """The chat template applied to a conversation. Raises TaskError for one that it refuses."""
    messages = _plain(conversation)
    return _explained(
        conversation, tokenizer, lambda: tokenizer.apply_chat_template(messages, **options)
    )


def _plain(conversation: Conversation) -> list[dict[str, str]]:
    """The messages as the chat template reads them: role and content alone."""
    return [{"role": message["role"], "content": message["content"]} for message in conversation]


def _explained(conversation: Conversation, tokenizer: Any, render: Callable[[], Any]) -> Any:
    """What `render` returns.

    Raises TaskError, which quotes the conversation, where the chat template refuses it.
    """
    try:
        return rendered(tokenizer, render)
    except ConfigError as error:
        begin = str(conversation)[:60]
        raise TaskError(f"{error}\nThe conversation begins: {begin}") from error
