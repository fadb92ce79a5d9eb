"""Broken by: a word that is not the next one of a text, or a text that two splits share."""

from __future__ import annotations

from moe_lab.tasks.toy.cloze import cloze
from moe_lab.tasks.toy.stories import stories


def test_each_word_is_the_next_one_of_a_text_of_its_own_split():
    texts = {split: [story["text"] for story in stories(split, 20)] for split in ("test", "validation")}
    for split, own in texts.items():
        documents = cloze(split, 20)
        assert len(documents) > 200
        for document in documents:
            beginning = document["context"] + document["word"]
            assert document["word"].strip() and document["word"][0] == " " and document["context"][-1] != " "
            assert any(
                text.startswith((f"{beginning} ", f"{beginning}\n")) or text == beginning for text in own
            )
    assert not {document["context"] for document in cloze("test", 20)} & {
        document["context"] for document in cloze("validation", 20) if len(document["context"]) > 80
    }
