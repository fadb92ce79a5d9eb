"""`comparison.html` next to comparison.json: differences between stored evaluations, and the answers that flip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from moe_lab.reports.csv_rows import csv_text
from moe_lab.reports.figures.differences import difference_of
from moe_lab.reports.pages.answers import (
    TO_RIGHT,
    TO_WRONG,
    ShownAnswer,
    answer_data,
    answer_of,
    shown_answer,
)
from moe_lab.reports.pages.page import latex_of_rows, text_uri, write_page
from moe_lab.reports.pages.plots import forest
from moe_lab.reports.pages.verdict import Verdict, by_outcome, made_verdict
from moe_lab.results.comparisons.comparison import Comparison
from moe_lab.results.comparisons.evaluation import Evaluation
from moe_lab.results.comparisons.scores import ComparedScore
from moe_lab.results.score_table import explained_marks
from moe_lab.results.scores import Score

KINDS = {"to_right": TO_RIGHT, "to_wrong": TO_WRONG}
LEFT_OUT = (
    *("other", "test", "higher_is_better", "told_from_chance", "verdict"),
    *("to_right", "to_wrong", "flips"),
)
"""Keys of a score in comparison.json that are not in the downloads."""


def write_comparison_page(comparison: Comparison, path: Path) -> Path:
    """Write the page of a comparison (docs/compare.md) and return its path. Raises ResultsError."""
    evaluations = {one.key: one for one in comparison.evaluations}
    scores = comparison.scores
    found = [_verdict(score, evaluations, len(scores)) for score in scores]
    drawn = [(one, score) for one, score in zip(found, scores, strict=True) if score.interval is not None]
    names = distinct_names(comparison.evaluations)
    rows = [
        difference_of(one.score, names[score.other], score.higher_is_better is False) for one, score in drawn
    ]
    answers = [answer for score in scores for answer in _flips(score, comparison, evaluations)]
    lines = [
        {"with": score.other} | {key: value for key, value in score.to_json().items() if key not in LEFT_OUT}
        for score in scores
    ]
    title = f"{' and '.join(name for key, name in names.items() if key != 'a')} against {names['a']}"
    return write_page(
        path,
        "comparison.html.j2",
        title=title,
        evaluations=evaluations,
        scores=scores,
        verdicts=by_outcome(found),
        forest=forest(rows, [one.outcome for one, _ in drawn]),
        answers=answers,
        answer_data=answer_data(answers),
        kinds=list(KINDS.values()),
        notes=comparison.notes,
        marks=explained_marks(mark for one in comparison.evaluations for mark in one.marks),
        csv=text_uri(csv_text(lines), "csv"),
        latex=text_uri(latex_of_rows(lines, title), "x-tex"),
    )


def distinct_names(evaluations: Sequence[Evaluation]) -> dict[str, str]:
    """A name for each evaluation, by key: the settings that not all evaluations share, else its label and key.

    `method=base task=gsm8k` and `method=roe method.n=8 task=gsm8k` are `base` and `roe, method.n=8`.
    """
    settings = {one.key: one.settings.split() for one in evaluations}
    shared = set.intersection(*map(set, settings.values()))
    own = {key: [text for text in typed if text not in shared] for key, typed in settings.items()}
    names = {
        key: ", ".join(text.removeprefix("method=").removeprefix("model=") for text in each)
        for key, each in own.items()
    }
    if all(names.values()) and len(set(names.values())) == len(names):
        return names
    labels = {one.label for one in evaluations}
    return {one.key: one.label if len(labels) == len(evaluations) else _name(one) for one in evaluations}


def _name(evaluation: Evaluation) -> str:
    return f"{evaluation.label} ({evaluation.key})"


def _verdict(score: ComparedScore, evaluations: dict[str, Evaluation], tests: int) -> Verdict:
    """A row of the comparison in sentences."""
    other = evaluations[score.other]
    flips = None if score.to_right is None or score.to_wrong is None else (score.to_right, score.to_wrong)
    compared = Score(
        model=other.label,
        method="",
        task=score.task,
        metric=score.metric,
        run_id=other.run_id or "",
        n=score.n,
        value=score.b,
        baseline=score.a,
        difference=score.difference,
        difference_interval=score.interval,
        p_mcnemar=None if flips is None else score.p,
        p_randomization=score.p if flips is None else None,
        equal=score.equal,
        p_holm=score.p_holm,
        family=tests,
        flips=flips,
        marks=other.marks,
    )
    outcome = score.verdict
    return made_verdict(f"{_name(other)} on {score.task}", compared, outcome, _name(evaluations["a"]))


def _flips(
    score: ComparedScore, comparison: Comparison, evaluations: dict[str, Evaluation]
) -> Iterator[ShownAnswer]:
    """The answers of the documents that flip in a row."""
    metric, _, filter_name = score.metric.partition(",")
    run = f"{_name(evaluations[score.other])}, {score.metric}"
    for way, kind in KINDS.items():
        for number in (score.flips or {}).get(way, ()):
            document = comparison.documents[score.task][number]
            before, after = (
                answer_of(document.answers[key][filter_name], metric) for key in ("a", score.other)
            )
            if before is None or after is None:
                continue  # a text that is scored as a whole has no answer
            yield shown_answer(
                *([before, after], str(document.first.target), (0, 1) if kind == TO_RIGHT else (1, 0)),
                run=run,
                task=score.task,
                document=number,
                kind=kind,
                right=kind == TO_RIGHT,
            )
