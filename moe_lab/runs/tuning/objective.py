"""The objective of a trial on the tuning documents: perplexity of their answers, or accuracy (RoE, section 2.2.1).

Work that no temperature changes is done once: prompts and tokens here, forward passes without noise in the engine.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moe_lab.methods import get_method
from moe_lab.methods.method import Context
from moe_lab.results.identity import decisive_versions, versions
from moe_lab.results.logs import ResponseLog
from moe_lab.runs.tuning.texts import BIAS, EQUATIONS, WorkedReferences, check_solved, with_equation
from moe_lab.tasks.requests import build_requests, right_request

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from moe_lab.engine.lm import EngineLM
    from moe_lab.models.load import LoadedModel
    from moe_lab.runs.tuning.study import Study

Report = Callable[[float, int], None]
"""(perplexity of the requests scored so far, their number)"""


class Pruned(Exception):
    """The trial is certain to be the worst so far."""


class Perplexity:
    """exp of the mean negative log-likelihood per token of the reference answers, given their prompts.

    Args:
        worked: (prompt, answer) pairs that are scored instead of the data's own answers.
    """

    def __init__(self, study: Study, lm: EngineLM, worked: Sequence[tuple[str, str]] | None = None):
        from moe_lab.engine.lm import Request

        if worked is None:
            worked = [_right(study, group) for group in _instances(study, lm)]
        kinds = {"loglikelihood_rolling": "loglikelihood_rolling"}
        self.kind = kinds.get(study.task.get_config("output_type"), "loglikelihood")
        self.lm = lm
        self.requests = [Request(reference) for reference in worked]
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
        _instances(study, lm)
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


def objective(study: Study, lm: EngineLM, model: LoadedModel) -> Perplexity | Accuracy:
    """The study's metric over its tuning documents. `model` solves them first with tuning.text=own."""
    if study.search.metric == "accuracy":
        return Accuracy(study, lm)
    return Perplexity(study, lm, worked_references(study, model) if study.worked else None)


def _right(study: Study, instances: list[Instance]) -> tuple:
    """(prompt, right answer) of a document, with its equation if the study scores equations."""
    request = right_request(study.config, study.task, instances)
    if study.text != EQUATIONS:
        return request
    prompt, answer = request
    return prompt, with_equation(instances[0].doc, answer)


def _instances(study: Study, lm: EngineLM) -> list[list[Instance]]:
    """lm-eval's requests, document by document."""
    return build_requests(study.config, study.task, lm)


# The base model's own solutions of the tuning documents, generated and graded (tuning.text=own)


def worked_references(study: Study, model: LoadedModel) -> list[tuple[str, str]]:
    """(prompt, correct solution) of the tuning documents that the base model solves.

    They are generated once, greedily or with `gen_kwargs`, and graded by the task's headline metric. Waits for another
    process that generates them. Raises ConfigError if there are none.
    """
    references, name = study.worked, study.task.task_name
    assert references is not None
    stored = references.load_or_make(lambda: _make(study, references, model))
    check_solved(references, name)
    return [(one["prompt"], one["solution"]) for one in stored["solutions"]]


def _make(study: Study, references: WorkedReferences, model: LoadedModel) -> dict[str, Any]:
    """Generate the missing solutions and grade all of them. Returns the content of references.json."""
    from moe_lab.models.tokenizer import prompt_tokenizer

    header = {"run_id": references.id, "versions": decisive_versions()}
    log = ResponseLog(references.folder / "responses.jsonl", header)
    try:
        samples = _graded(study, log, model)
    finally:
        log.close()
    name, tokenizer = study.task.task_name, prompt_tokenizer(study.config)
    solutions = [
        {
            "document": study.samples[name][sample["doc_id"]],
            "prompt": sample["arguments"][0][0],
            "solution": with_first_space(sample["arguments"][0][0], sample["resps"][0][0], tokenizer),
        }
        for sample in samples
        if sample["correct"]
    ]
    print(
        f"{references.folder.name}: the base model solves {len(solutions):,} of {len(samples):,} tuning "
        f"documents; the others are left out of the perplexity.\n{BIAS}",
        file=sys.stderr,
    )
    counts = {"asked": len(samples), "correct": len(solutions)}
    return {"task": name, "split": study.split, "versions": versions(), **counts, "solutions": solutions}


def with_first_space(prompt: str, text: str, tokenizer: Any) -> str:
    """A generated text with the first space that decoders of SentencePiece models drop."""
    drops = not tokenizer.decode(tokenizer.encode(" a", add_special_tokens=False)).startswith(" ")
    dropped = drops and not prompt[-1:].isspace() and not text[:1].isspace()
    return f" {text}" if dropped else text


def _graded(study: Study, log: ResponseLog, model: LoadedModel) -> list[dict[str, Any]]:
    """lm-eval's sample of every tuning document, with `correct`: whether its headline metric is 1."""
    from moe_lab.models.tokenizer import prompt_tokenizer
    from moe_lab.runs.evaluation.lms import RecordedLM
    from moe_lab.runs.evaluation.run_lm_eval import evaluate_tasks

    base = get_method("base")(get_method("base").Config(name="base"))
    config = replace(study.config, method=base.config)
    with ExitStack() as opened:
        lm = RecordedLM(
            log,
            lambda: opened.enter_context(base.open(model, Context(config=config))),
            lambda: prompt_tokenizer(config),
            config.apply_chat_template,
        )
        evaluated = evaluate_tasks(config, study.tasks, lm, None, bootstrap_iters=0)
    samples = evaluated["samples"][study.task.task_name]
    headline = config.task.metric or f"{samples[0]['metrics'][0]},{samples[0]['filter']}"
    metric, _, filter_name = headline.partition(",")
    return [
        sample | {"correct": bool(sample["resps"][0][0]) and float(sample[metric]) == 1}
        for sample in samples
        if sample["filter"] == filter_name
    ]
