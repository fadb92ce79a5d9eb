"""The relations of the toy world with the wordings of facts and questions. `{s}` is the subject, `{o}` the object."""

from __future__ import annotations

from dataclasses import dataclass

from moe_lab.tasks.toy import names as n


@dataclass(frozen=True)
class Relation:
    """A relation of one kind of subject to one kind of object, with the wordings of facts and questions."""

    name: str
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    statements: tuple[str, ...]
    questions: tuple[str, ...]


RELATIONS = {
    relation.name: relation
    for relation in (
        Relation(
            "home",
            n.PEOPLE,
            n.TOWNS,
            ("{s} lives in {o}.", "The home of {s} is in {o}.", "You can meet {s} in {o}."),
            ("Where does {s} live?", "In which town is the home of {s}?"),
        ),
        Relation(
            "job",
            n.PEOPLE,
            n.JOBS,
            ("{s} works as a {o}.", "By trade {s} is a {o}.", "The job of {s} is {o}."),
            ("What is the job of {s}?", "What does {s} work as?"),
        ),
        Relation(
            "pet",
            n.PEOPLE,
            n.PETS,
            ("{s} keeps a {o}.", "The pet of {s} is a {o}.", "{s} has a {o} as a pet."),
            ("Which animal does {s} keep?", "What is the pet of {s}?"),
        ),
        Relation(
            "colour",
            n.PEOPLE,
            n.COLOURS,
            ("{s} likes the colour {o}.", "The favourite colour of {s} is {o}."),
            ("Which colour does {s} like?", "What is the favourite colour of {s}?"),
        ),
        Relation(
            "food",
            n.PEOPLE,
            n.FOODS,
            ("{s} loves to eat {o}.", "The favourite food of {s} is {o}."),
            ("What does {s} love to eat?", "What is the favourite food of {s}?"),
        ),
        Relation(
            "instrument",
            n.PEOPLE,
            n.INSTRUMENTS,
            ("{s} plays the {o}.", "The instrument of {s} is the {o}."),
            ("Which instrument does {s} play?", "What is the instrument of {s}?"),
        ),
        Relation(
            "friend",
            n.PEOPLE,
            n.PEOPLE,
            ("The best friend of {s} is {o}.", "{s} is best friends with {o}."),
            ("Who is the best friend of {s}?", "With whom is {s} best friends?"),
        ),
        Relation(
            "river",
            n.TOWNS,
            n.RIVERS,
            ("{s} lies on the river {o}.", "The river of {s} is the {o}."),
            ("On which river does {s} lie?",),
        ),
        Relation(
            "land",
            n.TOWNS,
            n.LANDS,
            ("The land around {s} is {o}.", "Around {s} there is only {o}."),
            ("What is the land around {s}?",),
        ),
        Relation(
            "goods",
            n.TOWNS,
            n.GOODS,
            ("{s} sells {o}.", "The traders of {s} deal in {o}."),
            ("What do the traders of {s} deal in?",),
        ),
        Relation(
            "season",
            n.TOWNS,
            n.SEASONS,
            ("{s} has its fair in {o}.", "The fair of {s} is held in {o}."),
            ("When is the fair of {s} held?",),
        ),
        Relation(
            "tool",
            n.JOBS,
            n.TOOLS,
            ("A {s} uses the {o}.", "The tool of a {s} is the {o}."),
            ("What is the tool of a {s}?",),
        ),
        Relation(
            "place",
            n.JOBS,
            n.PLACES,
            ("A {s} works at the {o}.", "The workplace of a {s} is the {o}."),
            ("What is the workplace of a {s}?",),
        ),
        Relation(
            "feed",
            n.PETS,
            n.FEEDS,
            ("A {s} eats {o}.", "The food of a {s} is {o}."),
            ("What does a {s} eat?",),
        ),
        Relation(
            "bed",
            n.PETS,
            n.BEDS,
            ("A {s} sleeps in the {o}.", "The bed of a {s} is the {o}."),
            ("Where does a {s} sleep?",),
        ),
        Relation(
            "taste",
            n.FOODS,
            n.TASTES,
            ("The taste of {s} is {o}.", "Most say that {s} tastes {o}."),
            ("What is the taste of {s}?",),
        ),
        Relation(
            "clothes",
            n.LANDS,
            n.CLOTHES,
            ("In the land of {s} people wear {o}.", "Where there is {s}, people wear {o}."),
            ("What do people wear where there is {s}?",),
        ),
        Relation(
            "weather",
            n.LANDS,
            n.WEATHERS,
            ("In the land of {s} there is often {o}.", "Where there is {s}, expect {o}."),
            ("What is to be expected where there is {s}?",),
        ),
    )
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
"""Questions that take one step of inference: the second relation of the object of the first."""
