"""The scores of a results.json: value, interval, comparison with the untouched model, marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from moe_lab.results.comparisons.evaluation import Evaluation
from moe_lab.results.folder import older_intervals, version_marks
from moe_lab.results.samples import reported
from moe_lab.results.significance import holm
from moe_lab.results.statistics import mcnemar, tango, wilson
from moe_lab.results.verdicts import all_judged, judged_documents, judges_in

MARKS = {
    "PARTIAL": "PARTIAL: part of the documents (limit=, samples=); not the benchmark's number.",
    "untuned": "untuned: the method's values were given, not tuned on held-out data.",
    "upper-bound": "upper-bound: uses the test's right answers; what could be had, not a result.",
    "other-profile": "other-profile: the temperatures were tuned for another model, n, noise or other bands.",
    "at-bound": "at-bound: a tuned value is at the bound of its search; a better one may lie beyond it.",
    "own-text": "own-text: tuned on the perplexity of the model's own solutions, which favours temperature 0.",
    "test-profile": "test-profile: routed by which experts a run took together on its test documents (no labels).",
    "toy-judge": "toy-judge: scored by the toy world's classifier, which knows nothing of harm in the real world.",
    "unjudged": "unjudged: some answers have no verdict; n, value and interval are of the others.",
    "other-versions": "other-versions: made with other versions of lm_eval, transformers or moe_lab.",
    "sampled-weights": "sampled-weights: its id rests on parts of the weights; the run's own command makes it anew.",
    "older-intervals": "older-intervals: intervals are of earlier methods; the run's own command makes them anew.",
}
"""Marks that stand beside every number of such a run, with their meaning."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric of a task in one run. Rates are fractions; a number that does not exist is None."""

    model: str
    method: str
    task: str
    metric: str
    run_id: str
    n: int | None = None
    seeds: int = 1
    value: float | None = None
    stderr: float | None = None
    """lm-eval's standard error, over documents."""
    std: float | None = None
    """Over seeds."""
    interval: tuple[float, float] | None = None
    """Over documents; of a number of one training over its held-out rows."""
    seed_interval: tuple[float, float] | None = None
    """Student's, over seeds."""
    baseline: float | None = None
    difference: float | None = None
    difference_interval: tuple[float, float] | None = None
    difference_seed_interval: tuple[float, float] | None = None
    p_mcnemar: float | None = None
    p_randomization: float | None = None
    """Of a score of one run that is not made of 0 and 1."""
    p_seeds: float | None = None
    """For means over seeds: see `moe_lab.reports.papers.means.mean_score`."""
    p_holm: float | None = None
    """`p`, corrected for all scores of a table (`corrected`)."""
    flips: tuple[int, int] | None = None
    """Documents that only this run has right, and documents that only the untouched model has right."""
    marks: tuple[str, ...] = field(default=())

    @property
    def p(self) -> float | None:
        """The p of its difference: McNemar's, the randomization test's, or that of a mean over seeds."""
        tests = (self.p_mcnemar, self.p_randomization, self.p_seeds)
        return next((p for p in tests if p is not None), None)


def scores_of(results: dict[str, Any], metric: str | None = None) -> list[Score]:
    """The scores of a run, one per group and task: its headline metric, or `metric` (lm-eval's `metric,filter`).

    The tasks that `task.name` lists come first, then the groups within them.
    """
    block = results["moe_lab"]
    metric, requested = metric or block["task"].get("metric"), block["task"]["name"]
    names = [
        *([requested] if isinstance(requested, str) else requested),
        *results.get("groups", {}),
        *block["task"]["tasks"],
    ]
    return [
        _named_score(results, block, name, metric)
        for name in dict.fromkeys(names)
        if name in results["results"]
    ]


def empty_score(results: dict[str, Any], metric: str) -> Score:
    """The first score of a run with another metric and no numbers but its documents."""
    first = scores_of(results)[0]
    kept = ("model", "method", "task", "run_id", "n", "marks")
    return Score(**{name: getattr(first, name) for name in kept}, metric=metric)


def against(results: dict[str, Any], other: str) -> dict[str, Any]:
    """The results with another run (a key of `compared` in the block) in place of the untouched model."""
    block = results["moe_lab"]
    compared = block.get("compared", {}).get(other, {})
    swapped = {"baseline": compared, "paired": compared.get("paired", {})}
    return results | {"moe_lab": block | swapped}


def shown_scores(results: dict[str, Any]) -> list[Score]:
    """The scores of the headline metric and of every judge's first metric."""
    block = results["moe_lab"]
    metrics = [block["task"].get("metric"), *(judge["metrics"][0] for judge in judges_in(block))]
    scores = [score for metric in dict.fromkeys(metrics) for score in scores_of(results, metric)]
    return list({(score.task, score.metric): score for score in scores}.values())


def corrected(scores: Sequence[Score]) -> list[Score]:
    """The scores with `p_holm`: Holm's correction for those of them that have a p."""
    p_values = holm([score.p for score in scores])
    return [replace(score, p_holm=p) for score, p in zip(scores, p_values, strict=True)]


def without_neighbour(block: dict[str, Any]) -> tuple[int, int] | None:
    """(questions without a neighbour, all questions) of a C3PO run.

    A question without a neighbour keeps its pathway. None where every question has its k nearest neighbours, and for
    the oracle, which has no neighbours.

    Args:
        block: `moe_lab` of a results.json.
    """
    c3po = block.get("c3po", {})
    without = c3po.get("reference", {}).get("questions_without", 0)
    if c3po.get("upper_bound") or (c3po.get("epsilon") is None and not without):
        return None
    return without, sum(len(documents) for documents in block["samples"].values())


def marks_of(block: dict[str, Any], task: str | None = None, metric: str | None = None) -> tuple[str, ...]:
    """The marks of a run, or of one of its scores; `block` is the `moe_lab` part of its results.json."""
    judges = [judge for judge in judges_in(block) if metric in (None, *judge["metrics"])]
    holds = {
        "PARTIAL": block.get("partial"),
        "untuned": block.get("untuned"),
        "upper-bound": block.get("c3po", {}).get("upper_bound"),
        "other-profile": _tuned_elsewhere(block),
        "at-bound": block.get("tuning", {}).get("at_bound"),
        "own-text": block.get("tuning", {}).get("references"),
        "test-profile": block.get("c2r", {}).get("test_profile"),
        "toy-judge": any(judge["toy"] for judge in judges),
        "unjudged": any(not all_judged(judge, task) for judge in judges),
        "other-versions": version_marks(block),
        "sampled-weights": _sampled_weights(block["model"]),
        "older-intervals": older_intervals(block),
    }
    return tuple(mark for mark, held in holds.items() if held)


def _sampled_weights(model: dict[str, Any]) -> bool:
    """Whether a folder's model was identified by parts of its weight files, as it was before `identified_by`."""
    return "identified_by" not in model and model.get("commit", "") is None


def evaluation_marks(evaluation: Evaluation) -> tuple[str, ...]:
    """The marks of a stored evaluation; none for one that lm-eval wrote."""
    own = evaluation.results.get("moe_lab")
    return () if own is None else marks_of(own)


def _tuned_elsewhere(block: dict[str, Any]) -> bool:
    if "tuning" not in block:
        return False
    tuned, config = block["tuning"], block["method"]["config"]
    settings = {"n": None, "noise": "gumbel", "noise_scale": "constant", "adaptive": None, "bands": None}
    ensemble = "n" in config  # a method without routing samples takes the logit scale alone
    other = ensemble and any(tuned.get(key, it) != config.get(key, it) for key, it in settings.items())
    return other or tuned["model"] != block["model"]["name"]


def _named_score(results: dict[str, Any], block: dict[str, Any], name: str, metric: str | None) -> Score:
    """The score of a task or a group. The documents of a group are one sample where its score is their mean."""
    score = _score(results, block, name, metric)
    if name in block["samples"]:
        return score
    tasks = [_score(results, block, task, metric) for task in _tasks_of(results, block["samples"], name)]
    counts = [round((task.value or 0.0) * (task.n or 0)) for task in tasks]
    shares = [count / (task.n or 1) for count, task in zip(counts, tasks, strict=True)]
    right, total = sum(counts), score.n or 0
    pairs = [*zip(shares, (task.value for task in tasks), strict=True), (right / max(total, 1), score.value)]
    if any(value is None or abs(share - value) > 1e-9 for share, value in pairs):
        return score  # scores that are no shares of documents, or a group that counts its tasks alike
    pooled = replace(score, interval=wilson(right, total) if total > 1 else None)
    if any(task.flips is None for task in tasks):
        return pooled
    won, lost = (sum(task.flips[side] for task in tasks if task.flips) for side in (0, 1))
    return replace(
        pooled,
        baseline=(right - won + lost) / total,
        difference=(won - lost) / total,
        difference_interval=tango(won, lost, total) if total > 1 else None,
        p_mcnemar=mcnemar(won, lost),
        p_randomization=None,
        flips=(won, lost),
    )


def _score(results: dict[str, Any], block: dict[str, Any], task: str, metric: str | None) -> Score:
    scores = results["results"][task]
    metric = headline(scores, metric)
    paired = block.get("paired", {}).get(task, {}).get(metric, {})
    baseline = (block.get("baseline") or {}).get("results", {}).get(task, {})
    interval = block.get("intervals", {}).get(task, {}).get(metric)
    judged = judged_documents(block, task, metric)
    return Score(
        model=block["model"]["name"],
        method=block["method"]["name"],
        task=task,
        metric=metric,
        run_id=block["run_id"],
        n=judged if judged is not None else _documents(results, block["samples"], task),
        value=_number(scores.get(metric)),
        stderr=_number(scores.get(metric.replace(",", "_stderr,", 1))),
        interval=pair(interval),
        baseline=_number(baseline.get(metric)),
        difference=_number(paired.get("difference")),
        difference_interval=pair(paired.get("ci95")),
        p_mcnemar=_number(paired.get("p_mcnemar")),
        p_randomization=_number(paired.get("p_randomization")),
        flips=None if paired.get("to_right") is None else (paired["to_right"], paired["to_wrong"]),
        marks=marks_of(block, task, metric),
    )


def headline(scores: dict[str, Any], metric: str | None) -> str:
    """`metric` where the task reports it, else the first reported `metric,filter`; a dash with predict_only."""
    known = reported(scores)
    if metric in known:
        return str(metric)
    return known[0] if known else "-"


def _documents(results: dict[str, Any], samples: dict[str, list[int]], name: str) -> int:
    """Documents of a task, or of all tasks of a group."""
    return sum(len(samples[task]) for task in _tasks_of(results, samples, name))


def _tasks_of(results: dict[str, Any], samples: dict[str, list[int]], name: str) -> list[str]:
    """A task itself; the tasks of a group, and of the groups in it."""
    if name in samples:
        return [name]
    return [task for child in results["group_subtasks"][name] for task in _tasks_of(results, samples, child)]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def pair(value: Any) -> tuple[float, float] | None:
    """Two limits as JSON has them; None where one is missing."""
    return (float(value[0]), float(value[1])) if value and None not in value else None
