"""Texts of the toy world: stories, the training corpus, and the tokenizer that is trained on it.

The tokenizer is a byte-level BPE with single digits, in which every answer is one token. This writes it:

    python -m moe_lab.tasks.toy.corpus <folder>
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from moe_lab.tasks.toy.questions import keys, wordings
from moe_lab.tasks.toy.word_problems import drill, word_problem
from moe_lab.tasks.toy.world import (
    FOODS,
    INSTRUMENTS,
    PEOPLE,
    RELATIONS,
    TOWNS,
    WEATHERS,
    answer,
    facts,
    generator,
    prominence,
    split_of,
    statement,
    words,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


STORY_SHARES = (("test", 0.02), ("validation", 0.02), ("train", 0.96))
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
WALKS = (
    "In the morning {a} walks to {town}.",
    "Early in the day {a} sets out for {town}.",
    "{a} takes the road to {town}.",
)
MEETS = (
    "On the way {a} meets {b}, the {job}.",
    "There {a} sees {b}, who works as a {job}.",
    "{b} the {job} comes along.",
)
SELLS = (
    "At the market they sell {goods}, and {a} buys some.",
    "{a} looks at the {goods} that the traders sell.",
)
EATS = (
    "At noon they eat {food}.",
    "{a} has some {food} with {b}.",
    "They share {food} by the river {river}.",
)
SKIES = ("Then there is {weather}.", "In the afternoon the {weather} comes.")
PLAYS = ("In the evening {b} plays the {music}.", "Later {b} plays the {music} and they sing.")
ENDS = (
    "At night {a} goes home to {home}.",
    "{a} is back in {home} before dark.",
    "Tired, {a} walks home to {home}.",
)


def portrait(rng: random.Random, sentences: int = 6) -> str:
    """True sentences about one subject, a person four times out of five."""
    if rng.random() < 0.8:
        subject = rng.choices(PEOPLE, prominence())[0]
    else:
        others = [relation for relation in RELATIONS.values() if relation.subjects is not PEOPLE]
        subject = rng.choice(rng.choice(others).subjects)
    about = [name for name, relation in RELATIONS.items() if subject in relation.subjects]
    chosen = rng.sample(about, min(len(about), sentences))
    return " ".join(statement(name, subject, rng.randrange(6)) for name in chosen)


def day(rng: random.Random) -> str:
    """A short day of one person. Its statements about homes and goods are true in the toy world."""
    a, b = rng.choices(PEOPLE, prominence())[0], rng.choice(PEOPLE)
    town, known = rng.choice(TOWNS), facts()
    names = {
        "a": a,
        "b": b,
        "town": town,
        "home": known["home", a],
        "job": known["job", b],
        "goods": known["goods", town],
        "river": known["river", town],
        "food": rng.choice(FOODS),
        "weather": rng.choice(WEATHERS),
        "music": known["instrument", b] if rng.random() < 0.8 else rng.choice(INSTRUMENTS),
    }
    parts = [MEETS, SELLS, EATS, SKIES, PLAYS]
    middle = [parts[i] for i in sorted(rng.sample(range(len(parts)), rng.randint(3, 5)))]
    text = " ".join(rng.choice(part) for part in [WALKS, *middle, ENDS])
    return f"It is {rng.choice(DAYS)}. " + text.format(**names)


def story(split: str, rng: random.Random) -> str:
    """One text of a split: a portrait followed by a day. The text itself determines the split."""
    while True:
        text = f"{portrait(rng)}\n{day(rng)}"
        if split_of(text, STORY_SHARES) == split:
            return text


def stories(split: str, count: int) -> list[dict[str, str]]:
    """`count` distinct texts of a split."""
    rng = generator("stories", split)
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[story(split, rng)] = None
    return [{"text": text} for text in texts]


# The next word of a text. A softmax temperature cannot change it, since the most probable word stays.

FIRST, EVERY = 6, 3
"""The documents ask for every third word of a text, from the seventh on."""


def cloze(split: str, texts: int) -> list[dict[str, str]]:
    """{"context", "word"}: the beginning of a text, and the word after it with its leading space."""
    return [
        {"context": " ".join(words[:place]), "word": f" {words[place]}"}
        for words in (story["text"].split(" ") for story in stories(split, texts))
        for place in range(FIRST, len(words), EVERY)
    ]


# The training corpus: an endless stream of documents, none of them from an evaluation split


def _problems(rng: random.Random) -> str:
    drawn = [word_problem("train", rng) for _ in range(rng.choice((1, 1, 1, 1, 2)))]
    return "\n\n".join(f"Question: {one['question']}\nAnswer: {one['answer']}" for one in drawn)


def _questions(rng: random.Random) -> str:
    questions = []
    for subject, path in rng.choices(keys("train"), k=rng.randint(1, 5)):
        text = rng.choice(wordings(path)).format(s=subject)
        questions.append(f"Question: {text}\nAnswer: {answer(subject, path)}")
    return "\n\n".join(questions)


SHARES: dict[Callable[[random.Random], str], float] = {
    _problems: 0.40,
    drill: 0.12,
    lambda rng: portrait(rng, sentences=rng.randint(2, 7)): 0.20,
    _questions: 0.22,
    lambda rng: story("train", rng): 0.06,
}
"""The kinds of documents, and the share of each."""


def document(rng: random.Random) -> str:
    """Draw one document of the corpus."""
    return rng.choices(list(SHARES), list(SHARES.values()))[0](rng)


def documents(seed: int, index: int, count: int) -> list[str]:
    """The `index`-th group of `count` documents of the corpus with this seed: the same in every process."""
    rng = generator("corpus", seed, index)
    return [document(rng) for _ in range(count)]


# The tokenizer

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
    return sorted({word for relation in RELATIONS.values() for word in relation.objects})


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
    sample = [
        text for index in range(GROUPS) for text in documents(seed=-1, index=index, count=500)
    ]
    frequent = [" ".join(["", *answers()])] * 200  # so that every answer is one token
    bpe.train_from_iterator(sample + frequent, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=END, eos_token=END, pad_token=END
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


if __name__ == "__main__":
    train_tokenizer().save_pretrained(sys.argv[1])
