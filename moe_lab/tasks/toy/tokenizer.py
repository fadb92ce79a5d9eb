"""The tokenizer that is trained on the toy world's corpus: byte-level BPE with single digits.

Every answer is one token. This writes it:

    python -m moe_lab.tasks.toy.tokenizer <folder>
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from moe_lab.tasks.toy.corpus import documents
from moe_lab.tasks.toy.world import RELATIONS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"
VOCABULARY = 1536
GROUPS = 60
"""Groups of 500 documents that the merges are learned from."""
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
Assistant:{% generation %} {{ message.content }}<|endoftext|>{% endgeneration %}{{ '\\n' }}
{%- else -%}
{{ message.role | capitalize }}: {{ message.content }}{{ '\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}Assistant:{%- endif -%}
"""


def answers() -> list[str]:
    """Every word that a question about the world can have as its answer."""
    words: set[str] = set()
    for relation in RELATIONS.values():
        words.update(relation.objects)
    return sorted(words)


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Learn the merges from the corpus."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sample: list[str] = []
    for index in range(GROUPS):
        sample += documents(seed=-1, index=index, count=500)
    all_answers = " ".join(["", *answers()])
    frequent = [all_answers] * 200  # so that every answer is one token
    bpe.train_from_iterator(sample + frequent, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=END, eos_token=END, pad_token=END
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


if __name__ == "__main__":
    train_tokenizer().save_pretrained(sys.argv[1])
