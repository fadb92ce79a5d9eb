"""The objective of a trial on the tuning documents: perplexity of their answers, or accuracy (RoE, section 2.2.1).

Work that no temperature changes is done once: prompts and tokens here, forward passes without noise in the engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moe_lab.runs.tuning.texts import EQUATIONS, with_equation
from moe_lab.tasks.requests import build_requests, right_request

if TYPE_CHECKING:
    from moe_lab.engine.lm import EngineLM
    from moe_lab.runs.tuning.study import Study

Report = Callable[[float, int], None]
"""(perplexity of the requests scored so far, their number)"""


class Pruned(Exception):
    """The trial is certain to be the worst so far."""


class Perplexity:
    """exp of the mean negative log-likelihood per token of the reference answers, given their prompts."""

    def __init__(self, study: Study, lm: EngineLM):
        from moe_lab.engine.lm import Request

        kinds = {"loglikelihood_rolling": "loglikelihood_rolling"}
        self.kind = kinds.get(study.task.get_config("output_type"), "loglikelihood")
        self.lm = lm
        groups = build_requests(study.config, study.task, lm)  # of each document
        right = [(group[0].doc, right_request(study.config, study.task, group)) for group in groups]
        if study.text == EQUATIONS:
            right = [(doc, (prompt, with_equation(doc, answer))) for doc, (prompt, answer) in right]
        self.requests = [Request(request) for _, request in right]
        self.tokens = [lm.count_tokens(self.kind, request) for request in self.requests]

    def __call__(self, worst: float | None, report: Report) -> float:
        """The perplexity under the LM's current ensemble. Raises Pruned once it must exceed `worst`.

        That is certain as soon as the answers scored so far have a larger negative log-likelihood than all answers in
        the worst trial, since the others can only add to it. Pruning therefore loses no better trial, and the sampler,
        which ranks pruned trials after complete ones, ranks it like its perplexity.
        """
        limit = math.inf if worst is None else math.log(worst) * sum(self.tokens)
        nll, scored, tokens = 0.0, 0, 0

        def on_answer(index: int, answer: Any) -> None:
            nonlocal nll, scored, tokens
            nll -= answer[0] if isinstance(answer, tuple) else answer
            scored, tokens = scored + 1, tokens + self.tokens[index]
            if nll > limit and scored < len(self.requests):
                report(math.exp(nll / tokens), scored)
                raise Pruned

        self.lm.answer(self.kind, self.requests, on_answer)
        return math.exp(nll / tokens)


class Accuracy:
    """The task's headline metric by lm-eval's own evaluation."""

    def __init__(self, study: Study, lm: EngineLM):
        self.study, self.lm = study, lm
        self.metric: str | None = study.config.task.metric
        build_requests(study.config, study.task, lm)
        study.task.build_all_requests = self._reset_answers

    def _reset_answers(self, **_: Any) -> None:
        """Replaces lm-eval's building of prompts: keeps the prompts and drops their earlier answers."""
        for instance in self.study.task.instances:
            instance.resps, instance.filtered_resps = [], {}

    def __call__(self, worst: float | None, report: Report) -> float:
        """The metric under the LM's current ensemble. It never prunes."""
        from moe_lab.results.samples import reported
        from moe_lab.runs.evaluation.run_lm_eval import evaluate_tasks

        name = self.study.task.task_name
        evaluated = evaluate_tasks(self.study.config, self.study.tasks, self.lm, None, bootstrap_iters=0)
        scores = evaluated["results"][name]
        return float(scores[self.metric or next(iter(reported(scores)))])


def objective(study: Study, lm: EngineLM) -> Perplexity | Accuracy:
    """The study's metric over its tuning documents."""
    return Accuracy(study, lm) if study.search.metric == "accuracy" else Perplexity(study, lm)
