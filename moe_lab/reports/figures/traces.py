"""Figures of C3PO's traces: as stored, the loss by step, and the share of experts retained (C3PO, Figures 5 and 6)."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from pandas import DataFrame

from moe_lab.errors import ResultsError
from moe_lab.reports.figures.primitives import curve, panel_per, panels_of
from moe_lab.reports.figures.style import BLUE, GREEN, GREY, ORANGE, RED, Drawing, step_axis
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.figure_kinds import TRACES
from moe_lab.results.model import RunResult
from moe_lab.results.samples import read_samples
from moe_lab.results.statistics import bootstrap_interval, score_interval
from moe_lab.results.stored_files import read_lines

# The traces of a stored C3PO run (`method.trace=true`), joined with its documents, for Figures 5 to 8
#
# N = questions, P = re-routed tokens of all of them, L = re-mixed layers, E = experts, K = experts of a token,
# S = states: the unchanged pathway, then that after every step.


@dataclass(frozen=True)
class StoredTraces:
    """The questions of a run in the order of their documents, each with its trace."""

    result: RunResult
    traces: list[dict[str, Any]]
    """One per question. Where every choice has a prompt of its own, the trace of the right one."""
    prompts: list[str]
    """The prompts of the same questions."""
    right: list[list[bool]]
    """[N][S]: whether the right answer had the highest log-likelihood in each state."""

    @property
    def top_k(self) -> int:
        assert self.result.model.top_k is not None
        return self.result.model.top_k

    @property
    def layers(self) -> list[int]:
        """Numbers of the re-mixed MoE layers."""
        return list(self.traces[0]["layers"])

    @property
    def all_experts(self) -> bool:
        """Whether every expert's weight was optimized."""
        core: int | None = self.result.method.settings["core_experts"]
        return core is None or core >= (self.result.model.experts or 0)

    @property
    def key(self) -> dict[str, str]:
        """The columns that name the run in a CSV."""
        return {"model": self.result.model.name, "task": ",".join(self.result.task.names)}

    @property
    def label(self) -> str:
        return f"{', '.join(self.key.values())} ({len(self.traces)} questions)"

    @cached_property
    def question_P(self) -> np.ndarray:
        """int [P]: the question of each token."""
        return np.repeat(
            np.arange(len(self.traces)), [len(trace["before"]) for trace in self.traces]
        )

    def probabilities(self, state: str) -> np.ndarray:
        """float64 [P, L, E]: `state` is "before" or "after"."""
        return np.array([token for trace in self.traces for token in trace[state]])


def traces_of(cells: Sequence[TableCell]) -> list[StoredTraces]:
    """The traces of the cells' runs, where they have some."""
    runs = [cell.results[0] for cell in cells if cell.results]
    return [read_traces(run) for run in runs if (run.stored_in / TRACES).is_file()]


def read_traces(result: RunResult) -> StoredTraces:
    """The traces of a run. Raises ResultsError where a document has no trace."""
    path = result.stored_in / TRACES
    stored = read_lines(path, "The run's command with rerun=true makes it again.") or []
    # of repeated lines the last one holds
    by_prompt = {trace.get("prompt"): trace for trace in stored}
    samples = read_samples(result)
    run = StoredTraces(result, [], [], [])
    for sample in (
        one for task in samples.values() for one in sorted(task, key=lambda one: one.document)
    ):
        choices = [(prompt, continuation) for prompt, continuation in sample.requests]
        # lm-eval logs either the index of the right answer or its text
        index, texts = str(sample.target), [text.strip() for _, text in choices]
        gold = (
            int(index)
            if index.isdigit() and int(index) < len(choices)
            else texts.index(index.strip())
        )
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
                f"{path} has no trace of document {sample.document}. The run's command with rerun=true makes all."
            ) from error
        run.traces.append(traces[gold])
        run.prompts.append(choices[gold][0])
        run.right.append(
            [max(of_state) == of_state[gold] for of_state in zip(*scores, strict=True)]
        )
    return run


def chosen_PLK(probabilities_PLE: np.ndarray, top_k: int) -> np.ndarray:
    """int [P, L, K]: the selected experts of each token."""
    return (-probabilities_PLE).argsort(axis=-1, kind="stable")[..., :top_k]


STEP_PANELS = {
    "accuracy": {"accuracy": (BLUE, "o-")},
    "changed answers": {"became_right": (GREEN, "^-"), "became_wrong": (RED, "v-")},
    "loss on the neighbours": {"loss": (ORANGE, "s-")},
}
"""The columns of each panel, with their looks."""


def draw_steps(runs: Sequence[StoredTraces]) -> Drawing:
    """Accuracy by optimization step, answers that became right or wrong, and the loss (C3PO, Figure 6).

    Three panels per run.
    """
    rows = [row for run in runs for row in step_rows(run)]
    shown = list(product(runs, STEP_PANELS))
    return Drawing(
        rows, lambda title: panel_per(shown, title, _steps, height=2.4), "Optimization steps"
    )


def _steps(axis: Axes, run: StoredTraces, panel: str) -> None:
    rows = DataFrame(step_rows(run), dtype=object)
    for name, (colour, style) in STEP_PANELS[panel].items():
        # the interval is that of the accuracy
        own = rows if name == "accuracy" else rows.drop(columns=["low", "high"])
        curve(axis, own, "step", name, colour=colour, style=style, label=name.replace("_", " "))
    step_axis(axis, "step")
    axis.set(title=f"{run.label}\n{panel}")


def step_rows(run: StoredTraces) -> list[dict[str, Any]]:
    """One row per step; step 0 is the unchanged pathway.

    `became_wrong` is a share of the questions that were right at first, `became_right` of those that were wrong; None
    without such questions. `loss` is the mean over the questions that have neighbours.
    """
    states = list(zip(*run.right, strict=True))
    first = states[0]
    rows = []
    for step, now in enumerate(states):
        low, high = score_interval(list(map(int, now))) or (None, None)
        changed = [mine != before for mine, before in zip(now, first, strict=True)]
        row = {
            "step": step,
            "accuracy": _mean(now),
            "low": low,
            "high": high,
            "became_wrong": _mean(compress(changed, first)),
            "became_right": _mean(compress(changed, (not before for before in first))),
            "right_at_first": sum(first),
            "questions": len(now),
            "loss": _mean(
                loss for trace in run.traces if (loss := trace["losses"][step]) is not None
            ),
        }
        rows.append(run.key | row)
    return rows


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def draw_retained(runs: Sequence[StoredTraces]) -> Drawing:
    """The share of experts selected after optimizing all of them that the router had ranked among its first n (C3PO,
    Figure 5).

    One panel per run; runs that optimized some of the experts only are left out.
    """
    shown = ((run, retained_rows(run)) for run in runs if run.all_experts)
    return panels_of(shown, _retained_draw, "Core experts")


def retained_rows(run: StoredTraces) -> list[dict[str, Any]]:
    """One row per n from 1 to E: the mean share over questions, tokens and layers, with a bootstrap interval."""
    before_PLE = run.probabilities("before")
    rank_PLE = (-before_PLE).argsort(axis=-1, kind="stable").argsort(axis=-1)
    rank_PLK = np.take_along_axis(
        rank_PLE, chosen_PLK(run.probabilities("after"), run.top_k), axis=-1
    )
    count_N = np.bincount(run.question_P)
    rows = []
    for n in range(1, before_PLE.shape[-1] + 1):
        share_P = (rank_PLK < n).mean(axis=(1, 2))
        share_N = np.bincount(run.question_P, weights=share_P) / count_N
        low, high = bootstrap_interval(share_N) if len(share_N) > 1 else (None, None)
        row = {
            "n": n,
            "share": float(share_N.mean()),
            "low": low,
            "high": high,
            "questions": len(share_N),
        }
        rows.append(run.key | row)
    return rows


def _retained_draw(axis: Axes, run: StoredTraces, rows: DataFrame) -> None:
    curve(axis, rows, "n", "share", ms=3, label="mean", band="95% interval")
    axis.axvline(run.top_k, color=GREY, ls=":", lw=1.2, label=f"the {run.top_k} experts of a token")
    step_axis(axis, "n: first experts by the router")
    axis.set(title=run.label, ylabel="share among the first n", ylim=(0, 1.03))
