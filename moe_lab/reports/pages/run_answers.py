"""All answers of the runs of a page, next to the base model's if a run is compared with it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from moe_lab.reports.pages.answer_kinds import KINDS, kind_alone, kind_of_pair
from moe_lab.reports.pages.answers import Answer, answer_of
from moe_lab.reports.pages.shown_answers import shown_answer
from moe_lab.results.model import RunResult
from moe_lab.results.reading import find_run
from moe_lab.results.samples import Sample, metric_values, read_samples
from moe_lab.results.scores import headline
from moe_lab.results.stored_files import DamagedError

SamplesByTask = Mapping[str, Sequence[Sample]]


class ScoredAnswer(NamedTuple):
    """An answer of a run, with its score."""

    answer: Answer
    score: Any
    """By the headline metric."""
    is_right: bool | None
    """None for a score that is not 0 or 1."""


class BaseSamples:
    """The samples of base models' runs, each read once."""

    def __init__(self) -> None:
        self._by_run_id: dict[str, SamplesByTask] = {}

    def of(self, run: RunResult) -> SamplesByTask | None:
        """The samples of a run's base model; None if it has none, or if it is not stored.

        Raises DamagedError.
        """
        if run.base_id is None:
            return None
        base_run = find_run(run.stored_in.parent, run.base_id)
        if base_run is None:
            return None
        if base_run.run_id not in self._by_run_id:
            self._by_run_id[base_run.run_id] = read_samples(base_run)
        return self._by_run_id[base_run.run_id]


class ShownAnswers(NamedTuple):
    """The answers on a page."""

    answers: list[dict[str, Any]]
    """As `shown_answer` returns them, changed ones first."""
    problems: list[str]
    """Why answers of a run are not there, one line each."""


def shown_answers(runs: Sequence[RunResult], labels: Sequence[str]) -> ShownAnswers:
    """The answers of all runs.

    A baseline's answers are shown only next to those of the other runs.

    Args:
        labels: a name for each run.
    """
    answers: list[dict[str, Any]] = []
    problems = []
    base_samples = BaseSamples()
    base_ids = {run.base_id for run in runs}
    for run, label in zip(runs, labels, strict=True):
        if run.run_id in base_ids:
            continue
        try:
            samples_of_base = base_samples.of(run)
            # a list: a damaged log shows no answer at all
            answers += list(_answers(run, label, samples_of_base))
        except DamagedError as error:
            problems.append(f"{label}: {error.problem}")
            continue
        if samples_of_base is None and run.base_id is not None:
            problems.append(f"{label}: the run of the base model is not stored here.")
    answers.sort(key=_place_of_kind)
    return ShownAnswers(answers, problems)


def _place_of_kind(answer: Mapping[str, Any]) -> int:
    """A key that orders answers by KINDS."""
    return KINDS.index(answer["kind"])


def _answers(
    run: RunResult, label: str, samples_of_base: SamplesByTask | None
) -> Iterator[dict[str, Any]]:
    """The answers of a run (`shown_answer`); next to the base model's, if its samples are given.

    Then documents that only one of the two answered are left out.
    """
    for task, samples in read_samples(run).items():
        place = {"run": label, "task": task}
        if samples_of_base is None:
            for document, answer in _scored(run, task, samples).items():
                yield _shown_alone(answer, place | {"document": document})
            continue

        base_answers = _scored(run, task, samples_of_base.get(task, ()))
        for document, answer in _scored(run, task, samples).items():
            if document in base_answers:
                pair = (base_answers[document], answer)
                yield _shown_pair(pair, place | {"document": document})


def _shown_alone(scored: ScoredAnswer, place: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a run without one of the base model."""
    kind = kind_alone(scored.is_right)
    return shown_answer([scored.answer], [scored.score], kind, **place, right=scored.is_right)


def _shown_pair(
    pair: tuple[ScoredAnswer, ScoredAnswer], place: Mapping[str, Any]
) -> dict[str, Any]:
    """The answers of the base model and of the run."""
    answers = [scored.answer for scored in pair]
    scores = [scored.score for scored in pair]
    rights = [scored.is_right for scored in pair]
    kind = kind_of_pair(answers, scores, rights)
    right = None if None in rights else rights[-1]
    return shown_answer(answers, scores, kind, **place, right=right)


def _scored(run: RunResult, task: str, samples: Sequence[Sample]) -> dict[int, ScoredAnswer]:
    """The answers of one run to a task by document, those of the filter of its headline metric.

    Documents whose text is scored as a whole have no answer and are left out.
    """
    key = headline(run.lm_eval.scores(task), run.metric)
    metric, _, filter_name = key.partition(",")
    best_score = 0 if run.lm_eval.better(task, key) is False else 1
    scores = metric_values(samples).get(key, {})

    answers = {}
    for sample in samples:
        if sample.filter != filter_name:
            continue
        answer = answer_of(sample, metric)
        if answer is None:
            continue
        score = scores.get(sample.document)
        is_right = score == best_score if score in (0, 1) else None
        answers[sample.document] = ScoredAnswer(answer, score, is_right)
    return answers
