"""A comparison of stored evaluations with the first one: the scores of both, matched example by
example."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from moe_lab.errors import ConfigError
from moe_lab.results.comparisons.evaluation import Evaluation
from moe_lab.results.comparisons.groups import compare_group
from moe_lab.results.comparisons.partial import ChangedExamples, PartialComparison, joined
from moe_lab.results.comparisons.tasks import compare_task
from moe_lab.results.score import ComparisonKey, Score
from moe_lab.results.significance import holm
from moe_lab.results.statistics import VERSION

SCHEMA_VERSION = 3


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Evaluations of the same documents, and which of their scores differ significantly."""

    evaluations: list[Evaluation]
    """The first is `a`; the others are compared with it."""
    scores: list[Score]
    """By evaluation, whose key is the `run_id`, then task, then metric; groups follow their
    tasks."""
    changed: Mapping[ComparisonKey, ChangedExamples]
    """The documents whose answers changed, of each task's scores of 0 and 1."""
    notes: list[str]
    """What is left out and what else differs, one sentence each."""

    def to_json(self) -> dict[str, object]:
        """What comparison.json holds: equal for equal evaluations."""
        rows = []
        for score in self.scores:
            row: dict[str, object] = {"run": score.run_id, **score.columns()}
            row["verdict"] = score.verdict
            row["changed"] = self._changed_numbers(score)
            rows.append(row)
        return {
            "schema_version": SCHEMA_VERSION,
            "statistics": VERSION,
            "evaluations": self.evaluations,
            "scores": rows,
            "notes": self.notes,
        }

    def _changed_numbers(self, score: Score) -> dict[str, list[int]] | None:
        """The numbers of the documents that became right, and wrong, by direction.

        None for a score without changed documents, such as a perplexity.
        """
        changed = self.changed.get(score.comparison)
        if changed is None:
            return None
        numbers = {}
        for direction, pairs in changed.items():
            numbers[direction] = [sample.document for sample, _ in pairs]
        return numbers


def compare(evaluations: Sequence[Evaluation]) -> Comparison:
    """Compare each evaluation with the first.

    Raises ConfigError if two have no task in common, or other documents, prompts or right answers
    of one.
    """
    first, *others = evaluations
    whole = joined(_compare_pair(first, other) for other in others)
    corrected = holm([score.p for score in whole.scores])
    family = sum(p is not None for p in corrected)
    scores = []
    for score, p_holm in zip(whole.scores, corrected, strict=True):
        scores.append(replace(score, p_holm=p_holm, family=family))
    return Comparison(
        evaluations=list(evaluations),
        scores=scores,
        changed=whole.changed_examples,
        notes=list(dict.fromkeys(whole.notes)),
    )


def _compare_pair(a: Evaluation, b: Evaluation) -> PartialComparison:
    """The scores of the tasks and groups that both evaluations have."""
    common = [task for task in a.samples if task in b.samples]
    if not common:
        raise ConfigError(
            f"{a.key} and {b.key} have no task in common: {', '.join(a.samples)} in {a.file}, "
            f"{', '.join(b.samples)} in {b.file}."
        )
    parts = [PartialComparison(notes=_notes_of_pair(a, b))]
    scores_of_tasks: dict[tuple[str, str], Score] = {}
    for task in common:
        of_task = compare_task(a, b, task)
        parts.append(PartialComparison(notes=_notes_of_task(a, b, task)))
        parts.append(of_task)
        for score in of_task.scores:
            scores_of_tasks[score.task, score.metric] = score
    for group in a.results.groups:
        if group in b.results.groups:
            parts.append(compare_group(a, b, group, scores_of_tasks))
    pair = joined(parts)
    if not pair.scores:
        raise ConfigError("\n".join([f"{a.key} and {b.key} have no score in common.", *pair.notes]))
    return pair


def _notes_of_pair(a: Evaluation, b: Evaluation) -> list[str]:
    """Notes on tasks that only one of two evaluations has, and on versions of lm-eval."""
    notes = []
    for evaluation, other in ((a, b), (b, a)):
        alone = [task for task in evaluation.samples if task not in other.samples]
        if alone:
            notes.append(f"Only in {evaluation.key}, and not compared: {', '.join(alone)}.")
    version_a = a.lm_eval_version
    version_b = b.lm_eval_version
    if version_a != version_b:
        notes.append(f"{a.key} was made with lm_eval {version_a}, {b.key} with {version_b}.")
    return notes


def _notes_of_task(a: Evaluation, b: Evaluation, task: str) -> list[str]:
    """Notes on the versions of a task in two evaluations, and on part of its documents."""
    notes = []
    version_a = a.results.task_versions.get(task)
    version_b = b.results.task_versions.get(task)
    if version_a != version_b:
        notes.append(f"{task} is version {version_a} in {a.key} and {version_b} in {b.key}.")
    evaluated = len({sample.document for sample in a.samples[task]})
    every = a.results.n_samples.get(task, {}).get("original", evaluated)
    if evaluated != every:
        part = f"{evaluated:,} of {every:,} documents (PARTIAL)"
        notes.append(f"{task}: {part}; not the benchmark's number.")
    return notes
