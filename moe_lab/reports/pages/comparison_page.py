"""`comparison.html` next to comparison.json: what differs between stored evaluations, and the answers that flip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moe_lab.reports.pages.answers import TO_RIGHT, TO_WRONG, answer_of, side_by_side
from moe_lab.reports.pages.page import csv_of_rows, latex_of_rows, text_uri, write_page
from moe_lab.reports.pages.verdict import BETTER, DIFFERENT, NOT_SIGNIFICANT, WORSE, Verdict, made_verdict
from moe_lab.results.scores import MARKS, Score

KINDS = {"to_right": TO_RIGHT, "to_wrong": TO_WRONG}
NUMBERS = ("n", "a", "b", "difference", "ci95", "p", "p_holm")


def write_comparison_page(content: Mapping[str, Any], path: Path) -> Path:
    """Write the page of a comparison and return its path. Raises ResultsError.

    Args:
        content: what comparison.json holds (docs/compare.md).
    """
    evaluations = {one["key"]: one for one in content["evaluations"]}
    scores = content["scores"]
    found = [_verdict(score, evaluations, len(scores)) for score in scores]
    answers = [answer for score in scores for answer in _flips(score, content["documents"], evaluations)]
    rows = [
        {"with": score["other"], "task": score["task"], "metric": score["metric"]}
        | {name: score[name] for name in NUMBERS}
        for score in scores
    ]
    title = f"{' and '.join(_name(one) for one in list(evaluations.values())[1:])} against {_name(evaluations['a'])}"
    return write_page(
        path,
        "comparison.html.j2",
        title=title,
        evaluations=evaluations,
        scores=scores,
        verdicts={
            kind: [v for v in found if v.outcome == kind]
            for kind in (BETTER, WORSE, DIFFERENT, NOT_SIGNIFICANT)
        },
        answers=answers,
        kinds=list(KINDS.values()),
        tasks=list(dict.fromkeys(each["task"] for each in answers)),
        names=list(dict.fromkeys(each["run"] for each in answers)),
        notes=content["notes"],
        marks=[
            text for mark, text in MARKS.items() if any(mark in one["marks"] for one in evaluations.values())
        ],
        csv=text_uri(csv_of_rows(rows), "csv"),
        latex=text_uri(latex_of_rows(rows, title), "x-tex"),
    )


def _name(evaluation: Mapping[str, Any]) -> str:
    return f"{evaluation['label']} ({evaluation['key']})"


def _verdict(score: Mapping[str, Any], evaluations: Mapping[str, Any], tests: int) -> Verdict:
    """A row of comparison.json in sentences."""
    other = evaluations[score["other"]]
    flips = None if score["to_right"] is None else (score["to_right"], score["to_wrong"])
    compared = Score(
        model=other["label"],
        method="",
        task=score["task"],
        metric=score["metric"],
        run_id=other["run_id"] or "",
        n=score["n"],
        value=score["b"],
        baseline=score["a"],
        difference=score["difference"],
        difference_interval=None if score["ci95"] is None else tuple(score["ci95"]),
        p_mcnemar=None if flips is None else score["p"],
        p_randomization=score["p"] if flips is None else None,
        p_holm=score["p_holm"],
        family=tests,
        flips=flips,
        marks=tuple(other["marks"]),
    )
    name = f"{_name(other)} on {score['task']}"
    outcome = score["verdict"] if score["told_from_chance"] else NOT_SIGNIFICANT
    return made_verdict(name, compared, outcome, _name(evaluations["a"]))


def _flips(
    score: Mapping[str, Any], documents: Mapping[str, Any], evaluations: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The answers of the documents that flip in a row, as the page's script reads them."""
    metric, _, filter_name = score["metric"].partition(",")
    other = evaluations[score["other"]]
    for way, kind in KINDS.items():
        for number in (score["flips"] or {}).get(way, ()):
            document = documents[score["task"]][str(number)]
            lines = (_line(document, key, filter_name) for key in ("a", score["other"]))
            before, after = (answer_of(line, metric) for line in lines)
            if before is None or after is None:
                continue  # a text that is scored as a whole has no answer
            values = (0, 1) if kind == TO_RIGHT else (1, 0)
            run = f"{_name(other)}, {score['metric']}"
            place = {"run": run, "task": score["task"], "document": number, "kind": kind}
            yield place | side_by_side(before, after, str(document["target"]), values)


def _line(document: Mapping[str, Any], key: str, filter_name: str) -> dict[str, Any]:
    """A document's line of the sample log that it comes from."""
    requests = [{"arg_0": document["prompt"], "arg_1": choice} for choice in document.get("choices", [{}])]
    return {
        "arguments": {f"gen_args_{number}": request for number, request in enumerate(requests)},
        "resps": document["answers"][key][filter_name]["resps"],
    }
