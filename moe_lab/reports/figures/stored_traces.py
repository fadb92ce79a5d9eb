"""The traces of a stored C3PO run (`method.trace=true`), joined with its documents, for Figures 5 to 8.

N = questions, P = re-routed tokens of all of them, L = re-mixed layers, E = experts, K = experts of a token,
S = states: the untouched pathway, then that after every step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import ResultsError
from moe_lab.reports.papers.cell import TableCell
from moe_lab.results.samples import read_samples
from moe_lab.results.stored_files import read_lines

if TYPE_CHECKING:
    import numpy as np

FILE = "traces.jsonl"


@dataclass(frozen=True)
class StoredTraces:
    """The questions of a run in the order of their documents, each with its trace."""

    results: dict[str, Any]
    """The run's results.json."""
    traces: list[dict[str, Any]]
    """One per question. Where every choice has a prompt of its own, the trace of the right one."""
    prompts: list[str]
    """The prompts of the same questions."""
    golds: list[str]
    """The right answers."""
    right: list[list[bool]]
    """[N][S]: whether the right answer had the highest log-likelihood in each state."""

    @property
    def block(self) -> dict[str, Any]:
        return self.results["moe_lab"]

    @property
    def top_k(self) -> int:
        return int(self.block["model"]["top_k"])

    @property
    def layers(self) -> list[int]:
        """Numbers of the re-mixed MoE layers."""
        return list(self.traces[0]["layers"])

    @property
    def all_experts(self) -> bool:
        """Whether every expert's weight was optimized."""
        core = self.block["method"]["config"]["core_experts"]
        return core is None or core >= self.block["model"]["experts"]

    @property
    def key(self) -> dict[str, Any]:
        """The columns that name the run in a CSV."""
        return {"model": self.block["model"]["name"], "task": self.block["task"]["name"]}

    @property
    def label(self) -> str:
        return f"{self.key['model']}, {self.key['task']} ({len(self.traces)} questions)"

    @cached_property
    def question_P(self) -> np.ndarray:
        """int [P]: the question of each token."""
        import numpy as np

        return np.repeat(np.arange(len(self.traces)), [len(trace["before"]) for trace in self.traces])

    def probabilities(self, state: str) -> np.ndarray:
        """float64 [P, L, E]: `state` is "before" or "after"."""
        import numpy as np

        return np.array([token for trace in self.traces for token in trace[state]])


def traces_of(cells: Sequence[TableCell]) -> list[StoredTraces]:
    """The traces of the cells' runs, where they have some."""
    runs = (read_traces(cell.folder, cell.results[0]) for cell in cells if cell.folder and cell.results)
    return [run for run in runs if run is not None]


def read_traces(folder: Path, results: dict[str, Any]) -> StoredTraces | None:
    """The traces of a run from its folder; None without traces. `results` is its results.json.

    Raises ResultsError where a document has no trace.
    """
    path = folder / FILE
    traces = read_lines(path, "The run's command with rerun=true makes it again.")
    if traces is None:
        return None
    by_prompt = {trace.get("prompt"): trace for trace in traces}  # of repeated lines the last one holds
    samples = read_samples(folder, results)
    run = StoredTraces(results, [], [], [], [])
    for sample in (one for task in samples.values() for one in sorted(task, key=lambda one: one["doc_id"])):
        choices = [(argument["arg_0"], argument["arg_1"]) for argument in sample["arguments"].values()]
        gold = _gold(sample["target"], choices)
        try:
            traces = [
                by_prompt[hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()]
                for prompt, _ in choices
            ]
            scores = [
                [state[trace["continuations"].index(text)] for state in trace["scores"]]
                for trace, (_, text) in zip(traces, choices, strict=True)
            ]
        except (KeyError, ValueError) as error:
            raise ResultsError(
                f"{path} has no trace of document {sample['doc_id']}. The run's command with rerun=true makes all."
            ) from error
        run.traces.append(traces[gold])
        run.prompts.append(choices[gold][0])
        run.golds.append(choices[gold][1].strip())
        run.right.append([max(of_state) == of_state[gold] for of_state in zip(*scores, strict=True)])
    return run


def _gold(target: str, choices: list[tuple[str, str]]) -> int:
    """The index of the right answer. lm-eval logs either the index or the answer's text."""
    if target.isdigit() and int(target) < len(choices):
        return int(target)
    return [text.strip() for _, text in choices].index(target.strip())


def chosen_PLK(probabilities_PLE: np.ndarray, top_k: int) -> np.ndarray:
    """int [P, L, K]: the selected experts of each token."""
    return (-probabilities_PLE).argsort(axis=-1, kind="stable")[..., :top_k]
