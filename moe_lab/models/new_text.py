"""The text of generated tokens as it is after their prompt.

A SentencePiece tokenizer of Mixtral's form writes a blank in front of every text, and its decoder
drops the first blank again. Decoded alone, new tokens lose a blank that belongs to them: of the
four blanks in front of `return x`, after `def f(x):` and a newline, three are left, which is no
Python. transformers' and lm-eval's own code decode new tokens alone.
"""

from collections.abc import Sequence
from typing import Any

_PROBE = "a a  a\n  a"


def depends_on_context(tokenizer: Any) -> bool:
    """Whether the text of tokens depends on the tokens before them.

    It does not for byte-level BPE, as GPT-2, Llama 3, Qwen, DeepSeek and OLMoE have it.
    """
    ids = tokenizer.encode(_PROBE, add_special_tokens=False)
    text = tokenizer.decode(ids)
    divided = [tokenizer.decode(ids[:i]) + tokenizer.decode(ids[i:]) for i in range(1, len(ids))]
    return divided != [text] * len(divided)


class NewText:
    """Decodes new tokens after their prompts: the text of both without the text of the prompt.

    Tokens whose text does not depend on those before them are decoded alone, which takes no time
    for the prompt.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.needs_prompt = depends_on_context(tokenizer)

    def __call__(
        self, prompt: Sequence[int], new: Sequence[int], skip_special_tokens: bool = True
    ) -> str:
        def text_of(ids: Sequence[int]) -> str:
            text: str = self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
            return text

        alone = text_of(new)
        begins_in_a_character = alone.startswith("\N{REPLACEMENT CHARACTER}")
        if not self.needs_prompt and not begins_in_a_character:
            return alone
        both = text_of([*prompt, *new])
        before = text_of(prompt)
        # The prompt's own text may end otherwise: in part of a character, which the new tokens
        # complete.
        shared = len(before)
        while both[:shared] != before[:shared]:
            shared -= 1
        return both[shared:]


def tokens_of(
    text: str, prompt: Sequence[int], new: Sequence[int], most: int, new_text: NewText
) -> list[int]:
    """The first tokens of `new`, `most` at most, that have `text`, which is the beginning of their
    text.

    A token counts that begins in the text and ends after it.
    """
    for count in range(min(len(new), most)):
        if new_text(prompt, new[:count]).startswith(text):
            return list(new[:count])
    return list(new[:most])
