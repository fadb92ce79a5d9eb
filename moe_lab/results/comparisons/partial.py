"""What the comparison of a part of two evaluations gives: of a pair, of one task, of a group, of
one score."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from moe_lab.results.samples import Sample
from moe_lab.results.score import ComparisonKey, Score

ExamplePair = tuple[Sample, Sample]
"""One document in the sample logs of two evaluations."""
ChangedExamples = dict[str, list[ExamplePair]]
"""{"to_right": documents, "to_wrong": documents}"""


@dataclass(frozen=True, kw_only=True)
class PartialComparison:
    """Compared scores, before the correction for their number."""

    scores: list[Score] = field(default_factory=list)
    changed_examples: dict[ComparisonKey, ChangedExamples] = field(default_factory=dict)
    """The documents whose answers changed, of each task's scores of 0 and 1."""
    notes: list[str] = field(default_factory=list)
    """What is left out and what else differs, one sentence each."""


def joined(parts: Iterable[PartialComparison]) -> PartialComparison:
    """The parts as one, in their order."""
    whole = PartialComparison()
    for part in parts:
        whole.scores.extend(part.scores)
        whole.changed_examples.update(part.changed_examples)
        whole.notes.extend(part.notes)
    return whole
