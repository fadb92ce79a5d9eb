"""lm-eval's sample logs, one line per document and filter: written for the user, read for
comparisons of runs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from moe_lab.results.atomic import json_line, write_atomically
from moe_lab.results.model import RunResult
from moe_lab.results.stored_files import damaged, read_lines
from moe_lab.results.task_scores import PLACEHOLDER

Values = dict[str, dict[int, Any]]
"""{"metric,filter": {document: value}}"""

Log = Mapping[str, Sequence[Mapping[str, Any]]]
"""By task the samples that lm-eval returns, or its tracker wrote."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One document and filter in lm-eval's log."""

    document: int
    filter: str
    values: Mapping[str, Any]
    """By metric; of a perplexity lm-eval's tuple."""
    requests: Sequence[Sequence[Any]] = ()
    """(prompt, options) of a generation; (prompt, continuation) of each choice."""
    target: Any = None
    responses: Sequence[Any] = ()
    """To each request a list: texts, or [log-likelihood, is greedy]."""
    filtered: Sequence[Any] = ()
    """The responses as metrics take them."""
    question: Any = None
    """The document."""
    doc_hash: str | None = None
    prompt_hash: str | None = None
    target_hash: str | None = None
    """lm-eval's, of the right answer."""

    @property
    def scored_words(self) -> int:
        """The words of the longest text whose log-likelihood was asked for; 0 for generated
        answers."""
        words = 0
        for request in self.requests:
            text = request[-1]
            if isinstance(text, str):
                words = max(words, len(text.split()), 1)
        return words

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Self:
        """A sample that lm-eval returned, or a line of its log. Raises KeyError, TypeError or
        AttributeError for a line that lacks keys."""
        requests = line.get("arguments") or {}
        if isinstance(requests, dict):
            # a log has {"gen_args_0": {"arg_0": ..., "arg_1": ...}, ...}
            requests = [list(arguments.values()) for arguments in requests.values()]
        return cls(
            document=line["doc_id"],
            filter=line["filter"],
            values={metric: _value(line[metric]) for metric in line["metrics"]},
            requests=requests,
            target=line.get("target"),
            responses=line.get("resps") or (),
            filtered=line.get("filtered_resps") or (),
            question=line.get("doc"),
            doc_hash=line.get("doc_hash"),
            prompt_hash=line.get("prompt_hash"),
            target_hash=line.get("target_hash"),
        )


def _plain_value(value: Any) -> Any:
    """A metric's value of a document as it is read from a log, without types of numpy.

    A number stays a number. A list, a tuple or an array becomes a tuple; lists inside of it stay
    lists.
    """
    if isinstance(value, list | tuple):
        return tuple(_without_numpy(item) for item in value)
    value = _without_numpy(value)
    return tuple(value) if isinstance(value, list) else value


def _without_numpy(value: Any) -> Any:
    """An array of numpy as a list, a number of numpy as a number; any other value as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _value(logged: Any) -> Any:
    """A metric's value of a document. Null, which JSON has for NaN and infinities, becomes NaN."""
    value = _plain_value(logged)
    return math.nan if value is None else value


def is_missing(value: Any) -> bool:
    """Whether a document has no value of a metric: the log has none, null or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def samples_file(folder: Path, task: str) -> Path:
    """The path of a task's sample log in a run's folder."""
    return folder / f"samples_{task.replace('/', '-')}.jsonl"


def write_samples(folder: Path, samples: Log) -> None:
    """Write `samples_<task>.jsonl` in the format of lm-eval's own tracker; verdicts and arrays of
    values are JSON.

    NaN and infinities, which lm-eval writes bare, are null. Raises ResultsError.
    """
    for task, samples_of_task in samples.items():
        lines = [json_line(_line_of(sample)) for sample in samples_of_task]
        write_atomically(samples_file(folder, task), "".join(lines))


def _line_of(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A line of lm-eval's log."""
    from lm_eval.utils import sanitize_list

    arguments = {}
    for i, parts in enumerate(sample["arguments"]):
        arguments[f"gen_args_{i}"] = {f"arg_{j}": part for j, part in enumerate(parts)}
    filtered = []
    for response in sample["filtered_resps"]:
        is_verdict = isinstance(response, dict)
        filtered.append(response if is_verdict else sanitize_list(response))
    return {
        **sample,
        **{metric: _plain_value(sample[metric]) for metric in sample["metrics"]},
        "arguments": arguments,
        "resps": sanitize_list(sample["resps"]),
        "filtered_resps": filtered,
        "target": str(sample["target"]),
    }


def read_samples(result: RunResult) -> dict[str, list[Sample]]:
    """The sample logs of a finished run by task, checked against its result.

    Raises DamagedError if one is missing, cannot be read, or lacks a document.
    """
    advice = (
        f"Remove {result.stored_in / 'results.json'}; the run's command makes both again from the "
        "stored answers."
    )
    samples = {}
    for task, documents in result.samples.items():
        file = samples_file(result.stored_in, task)
        lines = read_lines(file, advice)
        if lines is None:
            raise damaged(file, "it is gone", advice)
        samples_of_task = samples_of(lines, file, advice)
        if not _has_all_documents(samples_of_task, documents, _filters(result, task)):
            reason = f"{len(samples_of_task):,} lines are not those of {len(documents):,} documents"
            raise damaged(file, reason, advice)
        samples[task] = samples_of_task
    return samples


def _has_all_documents(
    samples: Iterable[Sample], documents: Iterable[int], filters: Iterable[str]
) -> bool:
    """Whether every filter has exactly these documents; False if there is no filter at all."""
    documents_of: dict[str, set[int]] = {name: set() for name in filters}
    for sample in samples:
        documents_of.setdefault(sample.filter, set()).add(sample.document)
    expected = set(documents)
    return bool(documents_of) and all(numbers == expected for numbers in documents_of.values())


def samples_of(lines: Iterable[Mapping[str, Any]], file: Path, advice: str) -> list[Sample]:
    """The samples in a log's lines.

    Raises DamagedError for a line that lacks keys, and for a document that stands there twice.
    """
    samples: dict[tuple[str, int], Sample] = {}
    for line in lines:
        try:
            sample = Sample.of(line)
        except (AttributeError, KeyError, TypeError) as error:
            raise damaged(file, f"a line lacks {error}", advice) from error
        key = sample.filter, sample.document
        if key in samples:
            raise damaged(file, f"document {sample.document} stands there twice", advice)
        samples[key] = sample
    return list(samples.values())


def check_samples(result: RunResult) -> None:
    """Raise DamagedError if a sample log of a finished run is missing or has another number of
    lines."""
    for task, documents in result.samples.items():
        file = samples_file(result.stored_in, task)
        expected = len(documents) * max(1, len(_filters(result, task)))
        try:
            lines = _count_lines(file)
        except OSError as error:
            raise damaged(file, error) from error
        if lines != expected:
            raise damaged(file, f"{lines:,} lines, and {expected:,} are expected")


def _count_lines(file: Path) -> int:
    """The number of lines of a file, read in blocks of 1 MiB."""
    lines = 0
    with file.open("rb") as content:
        while block := content.read(2**20):
            lines += block.count(b"\n")
    return lines


def _filters(result: RunResult, task: str) -> set[str]:
    """lm-eval's filters of a task, from the `metric,filter` keys of its scores."""
    return {key.partition(",")[2] for key in result.lm_eval.scores(task) if "," in key}


def metric_values(samples: Iterable[Sample]) -> Values:
    """The values of samples by `metric,filter`, then by document; without lm-eval's placeholder
    metric."""
    values: Values = {}
    for sample in samples:
        for metric, value in sample.values.items():
            if metric == PLACEHOLDER:
                continue
            value_by_document = values.setdefault(f"{metric},{sample.filter}", {})
            value_by_document[sample.document] = value
    return values


def logged_values(lines: Iterable[Mapping[str, Any]]) -> Values:
    """As `metric_values`, of the samples that lm-eval returned."""
    return metric_values(map(Sample.of, lines))
