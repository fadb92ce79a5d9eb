"""The traces of a stored C3PO run (`method.trace=true`), joined with its documents.

Figures 5 to 8 of C3PO are drawn from them.

N = questions, P = re-routed tokens of all of them, L = re-mixed layers, E = experts, K = experts of
a token, S = states: the unchanged pathway, then that after every step.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from moe_lab.errors import ResultsError
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.figure_kinds import TRACES
from moe_lab.results.model import RunResult
from moe_lab.results.samples import Sample, read_samples
from moe_lab.results.stored_files import read_lines

Trace = dict[str, Any]
"""A line of traces.jsonl."""


@dataclass(frozen=True)
class StoredTraces:
    """The questions of a run in the order of their documents, each with its trace."""

    result: RunResult
    traces: list[Trace]
    """One per question. Where every choice has a prompt of its own, the trace of the right one."""
    prompts: list[str]
    """The prompts of the same questions."""
    right: list[list[bool]]
    """[N][S]: whether the right answer had the highest log-likelihood in each state."""

    @property
    def top_k(self) -> int:
        """K of the model."""
        assert self.result.model.top_k is not None
        return self.result.model.top_k

    @property
    def layers(self) -> list[int]:
        """Numbers of the re-mixed MoE layers."""
        return list(self.traces[0]["layers"])

    @property
    def all_experts(self) -> bool:
        """Whether every expert's weight was optimized."""
        core_experts: int | None = self.result.method.settings["core_experts"]
        return core_experts is None or core_experts >= (self.result.model.experts or 0)

    @property
    def key(self) -> dict[str, str]:
        """The columns that name the run in a CSV."""
        return {"model": self.result.model.name, "task": ",".join(self.result.task.names)}

    @property
    def label(self) -> str:
        """Model, tasks and number of questions, for a panel's title."""
        return f"{', '.join(self.key.values())} ({len(self.traces)} questions)"

    @cached_property
    def question_P(self) -> np.ndarray:
        """int [P]: the question of each token."""
        tokens_N = [len(trace["before"]) for trace in self.traces]
        return np.repeat(np.arange(len(self.traces)), tokens_N)

    def probabilities(self, state: str) -> np.ndarray:
        """float64 [P, L, E]: `state` is "before" or "after"."""
        tokens = []
        for trace in self.traces:
            tokens += trace[state]
        return np.array(tokens)


class TracedQuestion(NamedTuple):
    """A question with the trace of its right choice."""

    trace: Trace
    prompt: str
    right: list[bool]
    """[S]: whether the right answer had the highest log-likelihood in each state."""


def traces_of(cells: Sequence[TableCell]) -> list[StoredTraces]:
    """The traces of the first run of each cell; cells without a run or traces are left out."""
    results = [cell.results[0] for cell in cells if cell.results]
    return [read_traces(result) for result in results if (result.stored_in / TRACES).is_file()]


def read_traces(result: RunResult) -> StoredTraces:
    """The traces of a run. Raises ResultsError where a document has no trace."""
    path = result.stored_in / TRACES
    lines = read_lines(path, "The run's command with rerun=true makes it again.") or []
    # of repeated lines the last one holds
    by_prompt = {line.get("prompt"): line for line in lines}

    questions = []
    for sample in _samples(result):
        try:
            traces = [by_prompt[_digest(prompt)] for prompt, _ in sample.requests]
            scores = _choice_scores(sample, traces)
        except (KeyError, ValueError) as error:
            raise ResultsError(
                f"{path} has no trace of document {sample.document}. The run's command with "
                "rerun=true makes all."
            ) from error
        questions.append(_question(sample, traces, scores))
    return StoredTraces(
        result,
        traces=[question.trace for question in questions],
        prompts=[question.prompt for question in questions],
        right=[question.right for question in questions],
    )


def _samples(result: RunResult) -> Iterator[Sample]:
    """The samples of all tasks, of each in the order of its documents."""
    for samples in read_samples(result).values():
        yield from sorted(samples, key=lambda sample: sample.document)


def _digest(prompt: str) -> str:
    """The SHA-256 by which a trace names its prompt."""
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()


def _choice_scores(sample: Sample, traces: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """The log-likelihood of each choice in each state.

    Raises KeyError or ValueError for a trace that lacks one.
    """
    scores = []
    for trace, (_, continuation) in zip(traces, sample.requests, strict=True):
        place = trace["continuations"].index(continuation)
        scores.append([of_continuations[place] for of_continuations in trace["scores"]])
    return scores


def _question(
    sample: Sample, traces: Sequence[Trace], scores: Sequence[Sequence[float]]
) -> TracedQuestion:
    """The question of a sample. `traces` and `scores` have one entry per choice."""
    right_choice = _right_choice(sample)
    right = []
    for of_choices in zip(*scores, strict=True):
        right.append(max(of_choices) == of_choices[right_choice])
    prompt, _ = sample.requests[right_choice]
    return TracedQuestion(traces[right_choice], prompt, right)


def _right_choice(sample: Sample) -> int:
    """The index of the right choice. lm-eval logs either the index or its text. Raises ValueError
    for any other text."""
    target = str(sample.target)
    if target.isdigit() and int(target) < len(sample.requests):
        return int(target)
    texts = [continuation.strip() for _, continuation in sample.requests]
    return texts.index(target.strip())


def chosen_PLK(probabilities_PLE: np.ndarray, top_k: int) -> np.ndarray:
    """int [P, L, K]: the selected experts of each token."""
    return (-probabilities_PLE).argsort(axis=-1, kind="stable")[..., :top_k]
