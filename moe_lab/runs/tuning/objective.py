"""The objective of a trial: perplexity of the tuning documents' answers, or accuracy.

RoE, section 2.2.1.

Work that no trial changes is done once: prompts and tokens here, forward passes without noise in
the engine.
"""

import math
from collections.abc import Callable
from typing import Any

from moe_lab.engine.lm import EngineLM, Request
from moe_lab.models.tokenizer import dated
from moe_lab.results.task_scores import reported
from moe_lab.runs.evaluation.run_lm_eval import evaluate_tasks
from moe_lab.runs.tuning.study import Study
from moe_lab.tasks.metric_errors import check_scores
from moe_lab.tasks.requests import build_requests, right_request

Report = Callable[[float, int], None]
"""(perplexity of the requests scored so far, their number)"""


class Pruned(Exception):
    """The trial is certain to be the worst so far."""


class Perplexity:
    """exp of the mean negative log-likelihood per token of the reference answers."""

    def __init__(self, study: Study, lm: EngineLM):
        rolling = study.task.get_config("output_type") == "loglikelihood_rolling"
        self.kind = "loglikelihood_rolling" if rolling else "loglikelihood"
        self.reports_all = bool(study.search.pruner)
        """Whether a pruner gets a value after each document; else only after the last one."""
        self.requests: list[Request] = []
        self.tokens: list[int] = []
        for instances in build_requests(study.config, study.task, lm):  # those of one document
            request = Request(right_request(study.config, study.task, instances))
            self.requests.append(request)
            self.tokens.append(lm.count_tokens(self.kind, request))

    def __call__(self, lm: EngineLM, worst: float | None, report: Report) -> float:
        """The perplexity under an LM. Raises Pruned once it must exceed `worst`, and what `report`
        raises.

        That is certain as soon as the answers scored so far have a larger negative log-likelihood
        than all answers in the worst trial, since the others can only add to it. Pruning therefore
        loses no better trial, and the sampler, which ranks pruned trials after complete ones, ranks
        it like its perplexity.
        """
        limit = math.inf if worst is None else math.log(worst) * sum(self.tokens)
        loss = 0.0
        scored = 0
        tokens = 0

        def on_answer(index: int, answer: Any) -> None:
            """Add the loss of an answer; raise Pruned beyond the limit, unless it is the last
            answer."""
            nonlocal loss, scored, tokens
            loss -= answer[0] if isinstance(answer, tuple) else answer
            scored += 1
            tokens += self.tokens[index]
            if scored == len(self.requests):
                return
            is_worst = loss > limit
            if is_worst or self.reports_all:
                report(math.exp(loss / tokens), scored)
            if is_worst:
                raise Pruned

        lm.answer(self.kind, self.requests, on_answer)
        return math.exp(loss / tokens)


class Accuracy:
    """The task's headline metric by lm-eval's own evaluation."""

    def __init__(self, study: Study, lm: EngineLM):
        self.study = study
        self.metric: str | None = study.config.task.metric
        build_requests(study.config, study.task, lm)  # the task keeps them
        study.task.build_all_requests = self._reset_answers

    def _reset_answers(self, **_: Any) -> None:
        """Replaces lm-eval's building of prompts: keeps the prompts, drops earlier answers."""
        for instance in self.study.task.instances:
            instance.resps = []
            instance.filtered_resps = {}

    def __call__(self, lm: EngineLM, worst: float | None, report: Report) -> float:
        """The metric under an LM. It never prunes."""
        [name] = self.study.tasks["tasks"]
        evaluated = evaluate_tasks(self.study.config, self.study.tasks, lm, None)
        scores = evaluated.results[name]
        metric = self.metric or next(iter(reported(scores)))
        check_scores([failure for failure in evaluated.failures if failure.metric == metric])
        return float(scores[metric])


def objective(study: Study, lm: EngineLM) -> Perplexity | Accuracy:
    """The study's metric over its tuning documents, whose prompts `lm` builds."""
    template = study.config.apply_chat_template
    if template:
        lm.tokenizer.chat_template = dated(lm.chat_template(template))
    if study.search.metric == "accuracy":
        return Accuracy(study, lm)
    return Perplexity(study, lm)
