"""Scoring and generation for models that are run with copies of their own cache (`states.py`).

n = rows of a token, V = vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from torch import Tensor

from moe_lab.engine.engine import Engine
from moe_lab.engine.forward.batch import TreeRow
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.recurrent import Key, Past, StateForward
from moe_lab.engine.generation.generate import Choose, Finished
from moe_lab.engine.generation.prefill import Answer
from moe_lab.engine.scoring.scoring import Question, Scores, read_scores


class StateEngine(Engine):
    """One prompt or question at a time. Nothing is kept between calls."""

    def __init__(self, forward: StateForward):
        self.forward = forward

    @property
    def tokens_in(self) -> int:
        return self.forward.tokens_in

    def set_ensemble(self, ensemble: Ensemble) -> None:
        forward = StateForward(self.forward.model, ensemble)
        forward.tokens_in = self.forward.tokens_in
        self.forward = forward

    def score(self, questions: list[Question], on_scores: Callable[[int, Scores], None]) -> None:
        with self.forward as forward:
            for i, question in enumerate(questions):
                tree = TreeRow(question.context, question.continuations, document=question.document)
                logits = _after_nodes(forward, question, tree)
                on_scores(i, read_scores(forward.ensemble, [tree], logits)[0])

    def generate(
        self,
        answers: list[Answer],
        choose: Choose,
        finished: Finished,
        max_new_tokens: int,
        on_done: Callable[[Answer], None],
    ) -> None:
        with self.forward as forward:
            for answer in answers:
                _generate(forward, answer, choose, finished, max_new_tokens)
                on_done(answer)


def _after_nodes(forward: StateForward, question: Question, tree: TreeRow) -> Iterator[Tensor]:
    """Logits [1, n, V] after each wanted node, in their order."""
    key = Key(question.document)
    first, *others = tree.wanted
    children = Counter(tree.parents[node] for node in others)
    past, rest = forward.begin(question.context)
    yield forward.step(past, rest, key)[None]
    pasts: dict[int, Past] = {first: past}
    for node in others:
        parent = tree.parents[node]
        children[parent] -= 1
        past = pasts[parent].copied() if children[parent] else pasts.pop(parent)
        yield forward.step(past, [tree.ids[node]], key)[None]
        if children[node]:
            pasts[node] = past


def _generate(
    forward: StateForward, answer: Answer, choose: Choose, finished: Finished, max_new_tokens: int
) -> None:
    key = Key(answer.document, answer.repeat)
    past, ids = forward.begin(answer.prompt)
    while True:
        logits_nV = forward.step(past, ids, key)
        answer.generated += choose(forward.ensemble.next_scores(logits_nV[None]), [answer])
        if len(answer.generated) >= max_new_tokens or finished(answer.generated):
            return
        ids = answer.generated[-1:]
        if forward.ensemble.cache == "none":
            past, ids = forward.begin(answer.prompt)
            ids = [*ids, *answer.generated]
