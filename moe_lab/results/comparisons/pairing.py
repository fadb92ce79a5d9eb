"""Pairs the documents of two evaluations by content, and refuses those that were asked other
questions.

lm-eval writes a hash of each document (`doc_hash`), of its prompt and of its right answer. Equal
documents of one task are paired in their order.
"""

from collections import Counter
from collections.abc import Sequence

from moe_lab.errors import ConfigError
from moe_lab.results.comparisons.evaluation import Evaluation
from moe_lab.results.comparisons.partial import ExamplePair
from moe_lab.results.samples import Sample

DocumentKey = tuple[str | None, int]
"""The hash of a document, and how many equal ones are before it."""
HASHES = {"prompts": "prompt_hash", "right answers": "target_hash"}
"""What must be equal in both, with its field in `Sample`."""


def paired_examples(a: Evaluation, b: Evaluation, task: str) -> dict[str, list[ExamplePair]]:
    """The documents of a task by filter, in the order of `a`'s document numbers. A filter that only
    one of the two has is left out.

    Raises ConfigError if the documents, the prompts or the right answers of the two differ.
    """
    samples_a = _by_filter(a.samples[task])
    samples_b = _by_filter(b.samples[task])
    pairs: dict[str, list[ExamplePair]] = {}
    for filter_name, by_document_a in samples_a.items():
        if filter_name not in samples_b:
            continue
        by_document_b = samples_b[filter_name]
        only_a = len(by_document_a.keys() - by_document_b.keys())
        only_b = len(by_document_b.keys() - by_document_a.keys())
        if only_a or only_b:
            raise ConfigError(
                f"Other documents of {task}: {only_a:,} of {len(by_document_a):,} are only in "
                f"{a.key}, {only_b:,} of {len(by_document_b):,} only in {b.key}.\nEvaluate both on "
                "the same documents (limit=, samples=, data_dir=)."
            )
        pairs[filter_name] = [
            (sample_a, by_document_b[document]) for document, sample_a in by_document_a.items()
        ]
        _check_hashes(task, pairs[filter_name])
    return pairs


def _check_hashes(task: str, pairs: Sequence[ExamplePair]) -> None:
    """Raise ConfigError if prompts or right answers differ."""
    for name, field in HASHES.items():
        differing = []
        for sample_a, sample_b in pairs:
            if getattr(sample_a, field) != getattr(sample_b, field):
                differing.append(sample_a.document)
        if differing:
            raise ConfigError(
                f"Other {name} of {task}: {len(differing):,} of {len(pairs):,} documents. The "
                f"first is document {differing[0]}.\nEvaluate both with the same task, "
                "num_fewshot, fewshot_seed and chat template."
            )


def _by_filter(samples: Sequence[Sample]) -> dict[str, dict[DocumentKey, Sample]]:
    """The samples of each filter by document, in the order of document numbers."""
    by_filter: dict[str, dict[DocumentKey, Sample]] = {}
    equal_before: Counter[tuple[str, str | None]] = Counter()
    for sample in sorted(samples, key=lambda sample: sample.document):
        document = sample.filter, sample.doc_hash
        key = sample.doc_hash, equal_before[document]
        by_filter.setdefault(sample.filter, {})[key] = sample
        equal_before[document] += 1
    return by_filter
