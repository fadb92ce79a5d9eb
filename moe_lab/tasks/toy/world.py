"""The toy world: people and things, relations between them, and facts drawn once from a fixed seed.

A fact is (relation, subject, object). Facts about people are spread unevenly over the corpus
(`prominence`), so that a model knows some people well and others hardly.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

# Reproducible randomness


def generator(*key: object) -> random.Random:
    """A generator keyed by its arguments; `random.Random` seeds from the text, never from
    `hash()`."""
    return random.Random("/".join(map(str, key)))


def split_of(key: str, shares: Sequence[tuple[str, float]]) -> str:
    """The split of a key, which never changes: splits are disjoint.

    `shares` are (split, fraction) pairs whose fractions sum to 1.
    """
    position = int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big") / 2**48  # in [0, 1)
    for split, fraction in shares:
        if position < fraction:
            return split
        position -= fraction
    return shares[-1][0]


# People and things. All are single words, so that each can be one token


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


def joined_words(beginnings: str, ends: str) -> tuple[str, ...]:
    """Every beginning with every end, as one word."""
    pairs = product(words(beginnings), words(ends))
    return tuple(beginning + end for beginning, end in pairs)


PEOPLE = joined_words(
    "Ma To Li Be Sa Ru Ke No Da Fi Jo Ha Ve Pi Zu Ga", "ra lo na mi ven rik sa do bel tan"
)
TOWNS = joined_words("Elm Ash Oak Fern Stone", "ford wick ham dale")
JOBS = words("baker farmer doctor teacher sailor tailor miller potter smith painter hunter singer")
PETS = words("cat dog horse goat duck hen sheep rabbit crow pony")
COLOURS = words("red blue green yellow black white brown purple pink grey")
FOODS = words("bread cheese soup rice beans plums honey nuts fish cake")
INSTRUMENTS = words("drum flute harp violin piano horn bell guitar")
RIVERS = words("Tarn Isel Orne Lune Dove Esk Nidd Wye")
LANDS = words("coast hills forest plain desert marsh")
GOODS = words("salt wool glass silk timber wine iron paper")
SEASONS = words("spring summer autumn winter")
TOOLS = words("oven plough needle net wheel kiln hammer brush bow book lamp rope")
PLACES = words("bakery field clinic school harbour shop mill studio forge camp stage market")
FEEDS = words("hay grain meat grass seeds worms carrots oats")
BEDS = words("barn basket stable pen nest coop shed burrow")
TASTES = words("sweet salty sour bitter mild")
CLOTHES = words("boots hats coats gloves scarves sandals")
WEATHERS = words("rain wind sun fog snow storms")

# Relations, with the wordings of facts and questions. `{s}` is the subject, `{o}` the object


@dataclass(frozen=True)
class Relation:
    """A relation of one kind of subject to one kind of object, with the wordings of facts and
    questions."""

    name: str
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    statements: tuple[str, ...]
    questions: tuple[str, ...]


_RELATIONS = """
home: PEOPLE TOWNS
  {s} lives in {o}. | The home of {s} is in {o}. | You can meet {s} in {o}.
  Where does {s} live? | In which town is the home of {s}?
job: PEOPLE JOBS
  {s} works as a {o}. | By trade {s} is a {o}. | The job of {s} is {o}.
  What is the job of {s}? | What does {s} work as?
pet: PEOPLE PETS
  {s} keeps a {o}. | The pet of {s} is a {o}. | {s} has a {o} as a pet.
  Which animal does {s} keep? | What is the pet of {s}?
colour: PEOPLE COLOURS
  {s} likes the colour {o}. | The favourite colour of {s} is {o}.
  Which colour does {s} like? | What is the favourite colour of {s}?
food: PEOPLE FOODS
  {s} loves to eat {o}. | The favourite food of {s} is {o}.
  What does {s} love to eat? | What is the favourite food of {s}?
instrument: PEOPLE INSTRUMENTS
  {s} plays the {o}. | The instrument of {s} is the {o}.
  Which instrument does {s} play? | What is the instrument of {s}?
friend: PEOPLE PEOPLE
  The best friend of {s} is {o}. | {s} is best friends with {o}.
  Who is the best friend of {s}? | With whom is {s} best friends?
river: TOWNS RIVERS
  {s} lies on the river {o}. | The river of {s} is the {o}.
  On which river does {s} lie?
land: TOWNS LANDS
  The land around {s} is {o}. | Around {s} there is only {o}.
  What is the land around {s}?
goods: TOWNS GOODS
  {s} sells {o}. | The traders of {s} deal in {o}.
  What do the traders of {s} deal in?
season: TOWNS SEASONS
  {s} has its fair in {o}. | The fair of {s} is held in {o}.
  When is the fair of {s} held?
tool: JOBS TOOLS
  A {s} uses the {o}. | The tool of a {s} is the {o}.
  What is the tool of a {s}?
place: JOBS PLACES
  A {s} works at the {o}. | The workplace of a {s} is the {o}.
  What is the workplace of a {s}?
feed: PETS FEEDS
  A {s} eats {o}. | The food of a {s} is {o}.
  What does a {s} eat?
bed: PETS BEDS
  A {s} sleeps in the {o}. | The bed of a {s} is the {o}.
  Where does a {s} sleep?
taste: FOODS TASTES
  The taste of {s} is {o}. | Most say that {s} tastes {o}.
  What is the taste of {s}?
clothes: LANDS CLOTHES
  In the land of {s} people wear {o}. | Where there is {s}, people wear {o}.
  What do people wear where there is {s}?
weather: LANDS WEATHERS
  In the land of {s} there is often {o}. | Where there is {s}, expect {o}.
  What is to be expected where there is {s}?
"""
"""Of each relation the name, the kinds of subjects and objects, its statements and its
questions."""


def _relation(head: str, statements: str, questions: str) -> Relation:
    """A relation from its three lines in `_RELATIONS`."""
    name, subjects, objects = head.replace(":", "").split()
    return Relation(
        name,
        globals()[subjects],
        globals()[objects],
        tuple(statements.strip().split(" | ")),
        tuple(questions.strip().split(" | ")),
    )


_lines = _RELATIONS.strip().splitlines()
RELATIONS = {
    relation.name: relation for relation in map(_relation, _lines[::3], _lines[1::3], _lines[2::3])
}

RULES = {
    ("home", "river"): "On which river does {s} live?",
    ("home", "land"): "What is the land around the home of {s}?",
    ("home", "goods"): "What do the traders in the town of {s} deal in?",
    ("home", "season"): "When is the fair in the town of {s} held?",
    ("job", "tool"): "What is the tool of {s} at work?",
    ("job", "place"): "What is the workplace of {s}?",
    ("pet", "feed"): "What does the pet of {s} eat?",
    ("pet", "bed"): "Where does the pet of {s} sleep?",
    ("food", "taste"): "What is the taste that {s} loves?",
    ("friend", "home"): "Where does the best friend of {s} live?",
    ("friend", "job"): "What is the job of the best friend of {s}?",
    ("friend", "pet"): "Which animal does the best friend of {s} keep?",
    ("friend", "colour"): "Which colour does the best friend of {s} like?",
    ("land", "clothes"): "What do people wear in {s}?",
    ("land", "weather"): "What weather is to be expected in {s}?",
}
"""Questions that take one step of inference: along the first relation, then along the second."""

# Facts

WORLD_VERSION = 1
"""Raised whenever a generated document may change: part of the identity of runs and of trained
models."""


@cache
def facts() -> dict[tuple[str, str], str]:
    """All facts: {(relation, subject): object}. No person is their own friend."""
    drawn = {}
    for relation in RELATIONS.values():
        rng = generator("world", WORLD_VERSION, relation.name)
        for subject in relation.subjects:
            possible = [thing for thing in relation.objects if thing != subject]
            drawn[relation.name, subject] = rng.choice(possible)
    return drawn


def answer(subject: str, path: tuple[str, ...]) -> str:
    """The object reached from a subject along one relation, or along the two of a rule."""
    for relation in path:
        subject = facts()[relation, subject]
    return subject


@cache
def prominence() -> tuple[float, ...]:
    """Relative frequency of each of PEOPLE in the corpus: 1/rank in a random order."""
    ranks = list(range(len(PEOPLE)))
    generator("world", WORLD_VERSION, "prominence").shuffle(ranks)
    return tuple(1.0 / (rank + 8) for rank in ranks)


def statement(relation: str, subject: str, pick: int = 0) -> str:
    """One sentence that states a fact; `pick` chooses among its wordings."""
    wordings = RELATIONS[relation].statements
    return wordings[pick % len(wordings)].format(s=subject, o=facts()[relation, subject])
