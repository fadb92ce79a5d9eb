"""Stories of the toy world: a portrait of somebody, and a day. Also the next word of such a text.

A softmax temperature cannot change the next word, since the most probable word stays.
"""

from __future__ import annotations

import random

from moe_lab.tasks.toy.world import (
    FOODS,
    INSTRUMENTS,
    PEOPLE,
    RELATIONS,
    TOWNS,
    WEATHERS,
    facts,
    generator,
    prominence,
    split_of,
    statement,
    words,
)

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
    return " ".join([statement(name, subject, rng.randrange(6)) for name in chosen])


def day(rng: random.Random) -> str:
    """A short day of one person. Its statements about homes and goods are true in the toy world."""
    a = rng.choices(PEOPLE, prominence())[0]
    b = rng.choice(PEOPLE)
    town = rng.choice(TOWNS)
    fact_of = facts()
    names = {
        "a": a,
        "b": b,
        "town": town,
        "home": fact_of["home", a],
        "job": fact_of["job", b],
        "goods": fact_of["goods", town],
        "river": fact_of["river", town],
        "food": rng.choice(FOODS),
        "weather": rng.choice(WEATHERS),
        "music": fact_of["instrument", b] if rng.random() < 0.8 else rng.choice(INSTRUMENTS),
    }
    parts = [MEETS, SELLS, EATS, SKIES, PLAYS]
    places = sorted(rng.sample(range(len(parts)), rng.randint(3, 5)))
    middle = [parts[place] for place in places]
    text = " ".join([rng.choice(wordings) for wordings in (WALKS, *middle, ENDS)])
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


FIRST = 6
EVERY = 3
"""The documents ask for every third word of a text, from the seventh on."""


def cloze(split: str, texts: int) -> list[dict[str, str]]:
    """{"context", "word"}: the beginning of a text, and the word after it with its leading
    space."""
    documents = []
    for row in stories(split, texts):
        words_of_text = row["text"].split(" ")
        for place in range(FIRST, len(words_of_text), EVERY):
            context = " ".join(words_of_text[:place])
            documents.append({"context": context, "word": f" {words_of_text[place]}"})
    return documents
