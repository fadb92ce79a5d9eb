"""The notes that follow every number of a run, with their meaning."""

from moe_lab.results.judge_counts import JudgeCounts, JudgeVerdicts
from moe_lab.results.model import RunResult

PART = "part"
EQUAL = "equal"

MARKS = {
    "PARTIAL": "PARTIAL: part of the examples; not the benchmark's number.",
    PART: "part: of a group that is compared as a whole; it has no test of its own.",
    EQUAL: "equal: within rounding of the run that it is compared with, in every document; there "
    "is no test.",
    "untuned": "untuned: the values were given, not tuned on held-out data.",
    "upper-bound": "upper-bound: uses the test's right answers; what could be had, not a result.",
    "other-profile": "other-profile: the temperatures were tuned for another model, n or noise.",
    "at-bound": "at-bound: a tuned value is at the bound of its search; a better one may lie "
    "beyond it.",
    "worse-than-calibrated": "worse-than-calibrated: method=calibration is better on the tuning "
    "documents.",
    "test-profile": "test-profile: routed by which experts a run took together on its test "
    "documents (no labels).",
    "test-examples": "test-examples: few-shot examples are other documents of the evaluated split, "
    "with their answers.",
    "toy-judge": "toy-judge: scored by the toy world's classifier, which knows nothing of harm in "
    "the real world.",
    "cut-prompts": "cut-prompts: some prompts are longer than the model's input (max_length) and "
    "lost their beginning.",
    "cut-reasoning": "cut-reasoning: some replies end in the reasoning (max_gen_toks); their "
    "answers are empty.",
    "eos-added": "eos-added: the tokenizer adds an end token, which replaces the first token of "
    "scored answers.",
    "bos-scored": "bos-scored: the tokenizer's beginning token is scored with each text, as in "
    "lm-eval.",
    "no-end-token": "no-end-token: neither model nor tokenizer has a token that ends an answer.",
    "decoded-in-context": "decoded-in-context: answers keep the blank at their beginning, which "
    "lm-eval drops.",
    "unjudged": "unjudged: some answers have no verdict; n, value and interval are of the others.",
    "empty-answers": "empty-answers: some answers have no text, which most judges take for a "
    "refusal; `judges` in results.json counts them.",
    "cut-for-judge": "cut-for-judge: some prompts or answers are longer than the judge's input: it "
    "did not read the beginning of the prompt, or the end of the answer either; `judges` in "
    "results.json counts them.",
    "other-versions": "other-versions: made with other versions of lm_eval, transformers or "
    "moe_lab.",
    "older-intervals": "older-intervals: intervals are of earlier methods; the run's own command "
    "makes them anew.",
}
"""By the name that tables show."""
ROUNDING = 1e-6
"""Two perplexities whose ratio is this near to 1 are equal."""


def marks_of(
    result: RunResult, task: str | None = None, metric: str | None = None
) -> tuple[str, ...]:
    """The notes that hold for a run, in the order of MARKS.

    Args:
        task: None for the notes of all tasks.
        metric: lm-eval's `metric,filter`. With it, the notes about judges are those of the metric's
            judge alone; None for those of all judges.
    """
    judges: list[JudgeVerdicts] = []
    counts: list[JudgeCounts] = []
    for judge in result.judges.values():
        if metric is None or metric in judge.metrics:
            judges.append(judge)
            counts += judge.counts(task)
    holds = {
        "PARTIAL": result.partial,
        "untuned": result.untuned,
        "upper-bound": result.is_reported("upper_bound"),
        "other-profile": _tuned_elsewhere(result),
        "at-bound": result.tuning.get("at_bound"),
        "worse-than-calibrated": _worse_than_calibrated(result),
        "test-profile": result.is_reported("test_profile"),
        "test-examples": result.has_test_examples(task),
        "toy-judge": any(judge.toy for judge in judges),
        "cut-prompts": result.cost.cut_prompts,
        "cut-reasoning": result.cost.cut_reasoning,
        "eos-added": result.cost.eos_added,
        "bos-scored": result.cost.bos_scored,
        "no-end-token": result.cost.no_end_token,
        "decoded-in-context": result.cost.decoded_in_context,
        "unjudged": any(not judge.judged_all(task) for judge in judges),
        "empty-answers": any(count.empty for count in counts),
        "cut-for-judge": any(count.cut for count in counts),
        "other-versions": result.version_notes,
        "older-intervals": result.older_intervals,
    }
    return tuple(mark for mark, is_held in holds.items() if is_held)


def _worse_than_calibrated(result: RunResult) -> bool:
    """Whether the tuned perplexity is above that of the base model at its best logit scale, on the
    same documents."""
    calibrated = result.tuning.get("calibrated_score")
    if calibrated is None or result.method.name == "calibration":
        return False
    return bool(result.tuning["score"] > calibrated * (1 + ROUNDING))


def _tuned_elsewhere(result: RunResult) -> bool:
    """Whether its values were tuned for another model, or for another n or noise of an ensemble."""
    tuned = result.tuning
    if not tuned:
        return False
    if tuned["model"] != result.model.name:
        return True
    settings = {key.removeprefix("roe."): value for key, value in result.method.settings.items()}
    if "n" not in settings:  # a method without routing samples takes the logit scale alone
        return False
    other_n = tuned.get("n") != settings["n"]
    other_noise = tuned.get("noise", "gumbel") != settings.get("noise", "gumbel")
    return bool(other_n or other_noise)
