"""Word problems of the toy world with worked steps, one to four:

    Mara has 12 shells. Tolo has 3 times as many shells as Mara. How many shells do they have
    together?
    12 * 3 = 36
    12 + 36 = 48
    #### 48

The calculation alone determines the split, so no calculation occurs in two splits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from moe_lab.tasks.toy.world import PEOPLE, generator, split_of, words

SHARES = (("test", 0.05), ("validation", 0.05), ("train", 0.90))
THINGS = words("shells apples coins stones cards books buttons beads pears keys stamps marbles")
BUYS = (
    "{a} buys {k} more.",
    "{a} finds {k} more {t}.",
    "Then {b} gives {a} {k} more.",
    "{a} gets {k} {t} from {b}.",
)
LOSES = (
    "{a} loses {k}.",
    "{a} gives {k} to {b}.",
    "Then {a} sells {k} {t}.",
    "{b} takes {k} of them.",
)
MOST = 400
CORPUS_START = 60
"""Largest first amount in the corpus."""
TASK_START = 99
"""Largest first amount in the task. It is larger, so that training on the corpus does not solve the
task."""


@dataclass
class Problem:
    """A problem under construction: its people, their amounts, the sentences and the
    calculations."""

    rng: random.Random
    person: str
    thing: str
    amount: int
    others: list[str]
    sentences: list[str] = field(default_factory=list)
    worked: list[str] = field(default_factory=list)
    question: str = ""

    def state(self, wording: str, k: int = 0, m: int = 0, b: str = "") -> None:
        """Add a sentence. `b` is the other person in it, by default the next one."""
        self.sentences.append(
            wording.format(a=self.person, b=b or self.others[0], t=self.thing, k=k, m=m)
        )

    def calculate(self, left: int, operator: str, right: int) -> int:
        """The result of a calculation, which becomes a worked step such as "12 * 3 = 36". `right`
        is not 0."""
        results = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}
        result = results[operator]
        self.worked.append(f"{left} {operator} {right} = {result}")
        return result


def _buy(problem: Problem) -> bool:
    """A larger amount by 2 to 60."""
    k = problem.rng.randint(2, 60)
    if problem.amount + k > MOST:
        return False
    problem.state(problem.rng.choice(BUYS), k)
    problem.amount = problem.calculate(problem.amount, "+", k)
    return True


def _lose(problem: Problem) -> bool:
    """A smaller amount by 2 to 60."""
    if problem.amount < 4:
        return False
    k = problem.rng.randint(2, min(60, problem.amount - 1))
    problem.state(problem.rng.choice(LOSES), k)
    problem.amount = problem.calculate(problem.amount, "-", k)
    return True


def _times(problem: Problem) -> bool:
    """Another person has 2 to 6 times as many."""
    k = problem.rng.randint(2, 6)
    if problem.amount * k > MOST:
        return False
    other = problem.others.pop(0)
    problem.state("{b} has {k} times as many {t} as {a}.", k, b=other)
    problem.person = other
    problem.amount = problem.calculate(problem.amount, "*", k)
    return True


def _share(problem: Problem) -> bool:
    """One of 2 to 6 equal piles."""
    divisors = [k for k in range(2, 7) if problem.amount % k == 0 and problem.amount > k]
    if not divisors:
        return False
    k = problem.rng.choice(divisors)
    problem.state("{a} puts the {t} into {k} equal piles and keeps one pile.", k)
    problem.amount = problem.calculate(problem.amount, "/", k)
    return True


def _bags(problem: Problem) -> bool:
    """Some bags with the same number in each."""
    k = problem.rng.randint(2, 9)
    m = problem.rng.randint(2, 12)
    if problem.amount + k * m > MOST:
        return False
    problem.state("{a} buys {k} bags with {m} {t} each.", k, m)
    problem.amount = problem.calculate(problem.amount, "+", problem.calculate(k, "*", m))
    return True


def _together(problem: Problem) -> bool:
    """The sum with another person, who has more or fewer: an ending."""
    k = problem.rng.randint(2, 40)
    more = problem.rng.random() < 0.5 or problem.amount - k < 2
    if 2 * problem.amount + k > MOST:
        return False
    other = problem.others.pop(0)
    comparison = "more" if more else "fewer"
    problem.state(f"{{b}} has {{k}} {comparison} {{t}} than {{a}}.", k, b=other)
    second = problem.calculate(problem.amount, "+" if more else "-", k)
    problem.question = f"How many {problem.thing} do {problem.person} and {other} have together?"
    problem.amount = problem.calculate(problem.amount, "+", second)
    return True


def _price(problem: Problem) -> bool:
    """The price of all: an ending."""
    k = problem.rng.randint(2, 6)
    if problem.amount * k > MOST or problem.thing == "coins":
        return False
    problem.state("Each of the {t} costs {k} coins.", k)
    problem.question = f"How many coins do all {problem.thing} of {problem.person} cost?"
    problem.amount = problem.calculate(problem.amount, "*", k)
    return True


EVENTS = ((_buy, 1), (_lose, 1), (_times, 1), (_share, 1), (_bags, 2))
"""Events, and the number of calculations that each adds. An event changes the problem and returns
True, or does nothing and returns False where its amounts would not fit."""
ENDINGS = ((_together, 2), (_price, 1), (_buy, 1), (_lose, 1), (_times, 1), (_share, 1), (_bags, 2))
"""The same for the last one or two calculations."""


def _attempt(rng: random.Random, steps: int, start: int) -> Problem:
    """Draw a problem of any split, with this number of calculations and a first amount of at most
    `start`."""
    people = rng.sample(PEOPLE, 7)
    problem = Problem(rng, people[0], rng.choice(THINGS), rng.randint(2, start), people[1:])
    problem.state("{a} has {k} {t}.", problem.amount)
    while len(problem.worked) < steps:
        steps_left = steps - len(problem.worked)
        event, cost = rng.choice(EVENTS if steps_left > 2 else ENDINGS)
        if cost > steps_left or (cost < steps_left and event is _price):
            continue
        event(problem)
    if rng.random() < 0.25:
        k = rng.randint(2, 60)
        unused_thing = rng.choice([thing for thing in THINGS if thing != problem.thing])
        aside = f"{people[6]} has {k} {unused_thing}."
        problem.sentences.insert(rng.randrange(len(problem.sentences) + 1), aside)
    if not problem.question:
        problem.question = f"How many {problem.thing} does {problem.person} have now?"
    return problem


def word_problem(
    split: str, rng: random.Random, steps: int | None = None, start: int = CORPUS_START
) -> dict[str, str | int]:
    """Draw one problem of a split: {"question", "answer", "steps"}; the answer ends with `####
    <number>`."""
    steps = steps or rng.randint(1, 4)
    while True:
        problem = _attempt(rng, steps, start)
        if split_of("; ".join(problem.worked), SHARES) == split:
            answer = "\n".join([*problem.worked, f"#### {problem.amount}"])
            return {
                "question": " ".join([*problem.sentences, problem.question]),
                "answer": answer,
                "steps": steps,
            }


def drill(rng: random.Random) -> str:
    """A page of single calculations of the train split: practice in arithmetic alone."""
    lines: list[str] = []
    while len(lines) < 6:
        problem = Problem(rng, "", "", rng.randint(2, rng.choice((20, 60, 300))), ["", ""])
        event = rng.choice((_buy, _lose, _times, _share))
        if event(problem) and split_of(problem.worked[0], SHARES) == "train":
            lines.append(problem.worked[0])
    return "\n".join(lines)


def word_problems(split: str, count: int) -> list[dict[str, str | int]]:
    """`count` distinct problems of a split as the task asks them, one to four steps in turn."""
    rng = generator("word_problems", split)
    problems: dict[Any, dict[str, str | int]] = {}
    while len(problems) < count:
        problem = word_problem(split, rng, steps=1 + len(problems) % 4, start=TASK_START)
        problems.setdefault(problem["question"], problem)
    return list(problems.values())
