"""The scores of a results.json: value, interval, comparison with the base model, notes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from moe_lab.results.measured import Paired
from moe_lab.results.model import BASE, RunResult
from moe_lab.results.samples import is_mean, reported
from moe_lab.results.significance import ALPHA
from moe_lab.results.statistics import mcnemar, tango, wilson
from moe_lab.results.stored import Interval

NOT_REPRODUCIBLE = "not-reproducible"
ComparisonKey = tuple[str, str, str, str]
"""What identifies a comparison within a command: run ids, task, metric, and the other run."""

MARKS = {
    "PARTIAL": "PARTIAL: part of the examples; not the benchmark's number.",
    "part": "part: of a group that is compared as a whole; it has no test of its own.",
    "equal": "equal: within rounding of the run that it is compared with, in every document; there is no test.",
    "untuned": "untuned: the values were given, not tuned on held-out data.",
    "upper-bound": "upper-bound: uses the test's right answers; what could be had, not a result.",
    "other-profile": "other-profile: the temperatures were tuned for another model, n or noise.",
    "at-bound": "at-bound: a tuned value is at the bound of its search; a better one may lie beyond it.",
    "worse-than-calibrated": "worse-than-calibrated: method=calibration is better on the tuning documents.",
    "test-profile": "test-profile: routed by which experts a run took together on its test documents (no labels).",
    NOT_REPRODUCIBLE: "not-reproducible: the policy decides differently in equal passes (it draws random numbers), so "
    "the same command gives other results; there is no test.",
    "test-examples": "test-examples: few-shot examples are other documents of the evaluated split, with their answers.",
    "toy-judge": "toy-judge: scored by the toy world's classifier, which knows nothing of harm in the real world.",
    "cut-prompts": "cut-prompts: some prompts are longer than the model's input (max_length) and lost their beginning.",
    "cut-reasoning": "cut-reasoning: some replies end in the reasoning (max_gen_toks); their answers are empty.",
    "eos-added": "eos-added: the tokenizer adds an end token, which replaces the first token of scored answers.",
    "bos-scored": "bos-scored: the tokenizer's beginning token is scored with each text, as in lm-eval.",
    "no-end-token": "no-end-token: neither model nor tokenizer has a token that ends an answer.",
    "decoded-in-context": "decoded-in-context: answers keep the blank at their beginning, which lm-eval drops.",
    "unjudged": "unjudged: some answers have no verdict; n, value and interval are of the others.",
    "empty-answers": "empty-answers: some answers have no text, which most judges take for a refusal; `judges` in "
    "results.json counts them.",
    "cut-for-judge": "cut-for-judge: some prompts or answers are longer than the judge's input: it did not read the "
    "beginning of the prompt, or the end of the answer either; `judges` in results.json counts them.",
    "other-versions": "other-versions: made with other versions of lm_eval, transformers or moe_lab.",
    "older-intervals": "older-intervals: intervals are of earlier methods; the run's own command makes them anew.",
}
"""Notes that follow every number of such a run, with their meaning."""

PART, EQUAL = "part", "equal"
BETTER, WORSE, DIFFERENT, NOT_SIGNIFICANT = "better", "worse", "different", "not significant"
EQUAL_RUNS = "equal within rounding"
DOCUMENTS, BOTH = "documents", "seeds and documents"
MCNEMAR, PERMUTATION, SEEDS, AVERAGE = "McNemar", "permutation", "seeds", "average"
"""Tests of a difference: of one run's scores of 0 and 1, of its other scores, of a mean over seeds, and over tasks."""
ROUNDING = 1e-6
"""Two perplexities whose ratio is this near to 1 are equal."""


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
    interval: Interval | None = None
    """Over documents (of a number of one training over its held-out rows), as `difference_interval`."""
    seed_interval: Interval | None = None
    """Student's, over seeds."""
    baseline: float | None = None
    difference: float | None = None
    difference_interval: Interval | None = None
    difference_seed_interval: Interval | None = None
    difference_both_interval: Interval | None = None
    """Over seeds and documents together, from five seeds on."""
    tested_over: str = DOCUMENTS
    """What the test and its interval are over: DOCUMENTS, SEEDS or BOTH."""
    equal: bool = False
    """Whether no document differs by more than rounding from the other run. Then there is no test."""
    p: float | None = None
    """Of its difference."""
    test: str | None = None
    """What `p` is of: MCNEMAR, PERMUTATION, SEEDS (`score_table.mean_score`) or AVERAGE (`score_table.task_mean`)."""
    p_holm: float | None = None
    """`p`, corrected by Holm for the comparisons of its question (`moe_lab.results.score_table.Family`)."""
    question: str | None = None
    """The scores that were asked for, controls, or another question of the command."""
    family: int | None = None
    """The number of comparisons that `p_holm` is corrected for."""
    other: str = BASE
    """The run that the difference is to: the base model's, or a key of `compared` in results.json."""
    changed: tuple[int, int] | None = None
    """Documents that only this run has right, and documents that only the other run has right."""
    lower_is_better: bool | None = False
    """Of the metric; None where a log of lm-eval does not say."""
    marks: tuple[str, ...] = field(default=())

    @property
    def tested_interval(self) -> Interval | None:
        """The interval of its difference that belongs to its test."""
        intervals = {DOCUMENTS: self.difference_interval, SEEDS: self.difference_seed_interval}
        return (intervals | {BOTH: self.difference_both_interval})[self.tested_over]

    @property
    def significant(self) -> bool:
        """Whether the corrected p is below 0.05."""
        return self.p_holm is not None and self.p_holm < ALPHA

    @property
    def verdict(self) -> str:
        """BETTER, WORSE, DIFFERENT (which of the two is not known), EQUAL_RUNS or NOT_SIGNIFICANT.

        The corrected p decides. A mean over seeds without a p is not significant. Expert metrics of one run have no p;
        their difference is significant if its interval excludes 0.
        """
        if self.equal:
            return EQUAL_RUNS
        if NOT_REPRODUCIBLE in self.marks:
            return NOT_SIGNIFICANT
        low, high = self.tested_interval or (0.0, 0.0)
        by_interval = self.p_holm is None and self.seeds == 1 and (low > 0 or high < 0)
        if not self.difference or not (self.significant or by_interval):
            return NOT_SIGNIFICANT
        if self.lower_is_better is None:
            return DIFFERENT
        return WORSE if (self.difference > 0) is self.lower_is_better else BETTER

    @property
    def comparison(self) -> ComparisonKey:
        """What identifies its comparison within a command."""
        return self.run_id, self.task, self.metric, self.other

    def columns(self) -> dict[str, Any]:
        """Its columns in every data frame and CSV file (`moe_lab.Results.frame`); a missing number is None."""
        nothing = (None, None)
        value, seed, difference = (
            limits or nothing
            for limits in (self.interval, self.seed_interval, self.tested_interval)
        )
        return {
            "model": self.model,
            "method": self.method,
            "task": self.task,
            "metric": self.metric,
            "seeds": self.seeds,
            "examples": self.n,
            "value": self.value,
            "low": value[0],
            "high": value[1],
            "stderr": self.stderr,
            "std": self.std,
            "seed_low": seed[0],
            "seed_high": seed[1],
            "compared_with": None if self.difference is None else self.other,
            "other_value": self.baseline,
            "difference": self.difference,
            "difference_low": difference[0],
            "difference_high": difference[1],
            "difference_over": self.tested_over if self.tested_interval else None,
            "test": self.test,
            "p": self.p,
            "p_holm": self.p_holm,
            "question": self.question,
            "family": self.family,
            "to_right": self.changed and self.changed[0],
            "to_wrong": self.changed and self.changed[1],
            "notes": " ".join(self.marks),
        }


NO_SCORE = Score(model="", method="", task="", metric="", run_id="")
"""A score without numbers."""


def scores_of(result: RunResult, metric: str | None = None, other: str = BASE) -> list[Score]:
    """The scores of a run, one per group and task: its headline metric, or `metric` (lm-eval's `metric,filter`).

    The tasks that `task.name` lists come first, then the groups within them. The parts of a listed group that is
    compared as a whole (MMLU's subjects) have the note `part` and no p, since the group's comparison was asked for.

    Args:
        other: the run that they are compared with: the base model's, or another one of `RunResult.others`.
    """
    names = dict.fromkeys([*result.task.names, *result.lm_eval.groups, *result.task.tasks])
    metric = metric or result.metric
    scores = []
    for name in names:
        if name not in result.lm_eval.results:
            continue
        score = _score(result, name, metric, other)
        # the documents of a group are one sample where its score is their mean
        parts = [] if name in result.samples else result.tasks_of(name)
        of_parts = None
        if parts and all(
            is_mean(result.lm_eval.configs.get(task, {}), score.metric) for task in parts
        ):
            of_parts = pooled(score, [_score(result, task, metric, other) for task in parts])
        scores.append(of_parts or score)
    # a group that was asked for, whose score is over all its documents as one sample
    asked = [
        one.task for one in scores if one.task in result.task.names and one.interval is not None
    ]
    whole = {task for name in asked if name not in result.samples for task in result.tasks_of(name)}

    def of_whole(score: Score) -> Score:
        if NOT_REPRODUCIBLE in score.marks:
            return replace(score, p=None, test=None)
        if (
            not whole
            or score.task in result.task.names
            or not whole.issuperset(result.tasks_of(score.task))
        ):
            return score
        return replace(score, p=None, test=None, marks=(*score.marks, PART))

    return list(map(of_whole, scores))


def empty_score(result: RunResult, metric: str) -> Score:
    """The first score of a run with another metric and no numbers but its documents."""
    first = scores_of(result)[0]
    kept = ("model", "method", "task", "run_id", "n", "marks")
    return Score(**{name: getattr(first, name) for name in kept}, metric=metric)


def shown_scores(result: RunResult, other: str = BASE) -> list[Score]:
    """The scores of the headline metric and of every judge's first metric; `other` as in `scores_of`."""
    metrics = [result.metric, *(judge.metrics[0] for judge in result.judges.values())]
    scores = [
        score for metric in dict.fromkeys(metrics) for score in scores_of(result, metric, other)
    ]
    return list({(score.task, score.metric): score for score in scores}.values())


def marks_of(
    result: RunResult, task: str | None = None, metric: str | None = None
) -> tuple[str, ...]:
    """The notes of a run, or of one of its scores."""
    judges = [judge for judge in result.judges.values() if metric in (None, *judge.metrics)]
    holds = {
        "PARTIAL": result.partial,
        "untuned": result.untuned,
        "upper-bound": result.is_reported("upper_bound"),
        "other-profile": _tuned_elsewhere(result),
        "at-bound": result.tuning.get("at_bound"),
        "worse-than-calibrated": _worse_than_calibrated(result),
        "test-profile": result.is_reported("test_profile"),
        NOT_REPRODUCIBLE: result.is_reported(NOT_REPRODUCIBLE),
        "test-examples": result.has_test_examples(task),
        "toy-judge": any(judge.toy for judge in judges),
        "cut-prompts": result.cost.cut_prompts,
        "cut-reasoning": result.cost.cut_reasoning,
        "eos-added": result.cost.eos_added,
        "bos-scored": result.cost.bos_scored,
        "no-end-token": result.cost.no_end_token,
        "decoded-in-context": result.cost.decoded_in_context,
        "unjudged": any(not judge.judged_all(task) for judge in judges),
        "empty-answers": any(counts.empty for judge in judges for counts in judge.counts(task)),
        "cut-for-judge": any(counts.cut for judge in judges for counts in judge.counts(task)),
        "other-versions": result.version_notes,
        "older-intervals": result.older_intervals,
    }
    return tuple(mark for mark, held in holds.items() if held)


def _worse_than_calibrated(result: RunResult) -> bool:
    """Whether the tuned perplexity is above that of the base model at its best logit scale, on the same documents."""
    calibrated = result.tuning.get("calibrated_score")
    worse = calibrated is not None and result.tuning["score"] > calibrated * (1 + ROUNDING)
    return worse and result.method.name != "calibration"


def _tuned_elsewhere(result: RunResult) -> bool:
    tuned = result.tuning
    config = {key.removeprefix("roe."): value for key, value in result.method.settings.items()}
    settings = {"n": None, "noise": "gumbel"}
    ensemble = "n" in config  # a method without routing samples takes the logit scale alone
    other = ensemble and any(
        tuned.get(key, it) != config.get(key, it) for key, it in settings.items()
    )
    return bool(tuned) and (other or tuned["model"] != result.model.name)


def pooled(whole: Score, tasks: Sequence[Score]) -> Score | None:
    """The score of a group whose metric is a mean, over the documents of its tasks as one sample of right and wrong
    answers.

    None where the scores are no shares of documents, or where the group counts its tasks alike. Without the numbers of
    changed documents it has no difference.
    """
    counts = [round((task.value or 0.0) * (task.n or 0)) for task in tasks]
    shares = [count / (task.n or 1) for count, task in zip(counts, tasks, strict=True)]
    right, total = sum(counts), whole.n or 0
    pairs = [
        *zip(shares, (task.value for task in tasks), strict=True),
        (right / max(total, 1), whole.value),
    ]
    if any(value is None or abs(share - value) > 1e-9 for share, value in pairs):
        return None
    score = replace(whole, interval=wilson(right, total) if total > 1 else None)
    if any(task.changed is None for task in tasks):
        return score
    won, lost = (sum(task.changed[side] for task in tasks if task.changed) for side in (0, 1))
    up, down = (lost, won) if score.lower_is_better else (won, lost)
    return replace(
        score,
        baseline=(right - up + down) / total,
        difference=(up - down) / total,
        difference_interval=tango(up, down, total) if total > 1 else None,
        p=mcnemar(won, lost),
        test=MCNEMAR,
        changed=(won, lost),
    )


def _score(result: RunResult, task: str, metric: str | None, other: str) -> Score:
    scores = result.lm_eval.scores(task)
    metric = headline(scores, metric)
    difference = result.difference(task, metric, other)
    marks = marks_of(result, task, metric)
    if difference.equal:
        marks = (*marks, EQUAL)
    score = Score(
        model=result.model.name,
        method=result.method.name,
        task=task,
        metric=metric,
        run_id=result.run_id,
        n=_documents(result, task, metric),
        value=_number(scores.get(metric)),
        stderr=_number(scores.get(metric.replace(",", "_stderr,", 1))),
        interval=result.interval(task, metric),
        baseline=_number(result.other_scores(task, other).get(metric)),
        other=other,
        lower_is_better=result.lm_eval.better(task, metric) is False,
        marks=marks,
    )
    return compared(score, difference)


def compared(score: Score, difference: Paired) -> Score:
    """The score with its difference to another run."""
    test, p = None, None
    if difference.p_mcnemar is not None:
        test, p = MCNEMAR, difference.p_mcnemar
    elif difference.p_permutation is not None:
        test, p = PERMUTATION, difference.p_permutation
    return replace(
        score,
        difference=difference.difference,
        difference_interval=difference.interval,
        equal=difference.equal,
        p=p,
        test=test,
        changed=difference.changed,
    )


def headline(scores: Mapping[str, Any], metric: str | None) -> str:
    """`metric` where the task reports it, else the first reported `metric,filter`; a dash with predict_only."""
    known = reported(scores)
    if metric in known:
        return str(metric)
    return known[0] if known else "-"


def _documents(result: RunResult, name: str, metric: str) -> int:
    """Documents of a task, or of all tasks of a group; of a judge's metric those that have a verdict."""
    counts = result.judge_counts(name, metric)
    if counts is not None:
        return counts.judged
    return sum(len(result.samples[task]) for task in result.tasks_of(name))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
