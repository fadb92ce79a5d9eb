"""The next word of held-out text: what a softmax temperature cannot change, since the most probable word stays."""

from __future__ import annotations

from moe_lab.tasks.toy.stories import stories

FIRST, EVERY = 6, 3
"""Words of a text that are asked for: every third one, from the seventh on."""


def cloze(split: str, texts: int) -> list[dict[str, str]]:
    """{"context", "word"}: the beginning of a text, and the word after it with its leading space."""
    documents = []
    for story in stories(split, texts):
        words = story["text"].split(" ")
        for place in range(FIRST, len(words), EVERY):
            documents.append({"context": " ".join(words[:place]), "word": f" {words[place]}"})
    return documents
