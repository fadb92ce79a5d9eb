"""The expert metrics of a model in training, on tokenized validation examples (MoE-Bench, section
4.2).

    trainer.add_callback(EpochMetrics(rows, folder))

Counted metrics count the tokens of the examples. Accuracy is the share of answer tokens that the
model predicts, given the true tokens before them. Intervention metrics are the accuracy lost under
a routing policy.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from transformers import TrainerCallback

from moe_lab.engine.forward.forward import Observer
from moe_lab.metrics.correlations import correlations
from moe_lab.metrics.counts import SelectedExperts
from moe_lab.metrics.entropies import entropies_of
from moe_lab.metrics.intervals import ratio
from moe_lab.metrics.registry import Selections, intervention_metrics, values_of
from moe_lab.metrics.stored import without_arrays
from moe_lab.metrics.teacher_forcing import (
    TokenizedExample,
    count_rows,
    labelled_tokens,
    right_tokens,
)
from moe_lab.results.atomic import json_line, plain, write_file
from moe_lab.results.stored_files import read_lines

FILE = "expert_metrics.jsonl"


def measure(model: nn.Module, rows: Sequence[TokenizedExample]) -> dict[str, Any]:
    """Accuracy and every expert metric on N examples (rows), with 95% intervals over the examples.

    Each value is a `Value` as JSON; counted metrics also have their largest possible value and
    their layers. Capacity is null for a model whose tokens take all of its experts.
    """
    start = time.perf_counter()
    routes = SelectedExperts()
    answers_N = labelled_tokens(rows)
    right_N = right_tokens(model, rows, routes)
    counts = count_rows(routes, rows)
    pairs_GLEE = counts.pairs_GPLEE[:, 0]

    def lost(policy: Observer) -> dict[str, Any]:
        return ratio(right_N - right_tokens(model, rows, policy), answers_N).to_json()

    counts_LE = np.diagonal(pairs_GLEE.sum(axis=0), axis1=-2, axis2=-1)
    top_k = [routes.top_k[layer] for layer in routes.layers]
    selections = Selections(counts_LE, counts.experts, top_k)
    counted = without_arrays(entropies_of(pairs_GLEE, counts.experts)).plain
    measured = {
        "rows": len(rows),
        "tokens": counts.tokens_P[0],
        "answer_tokens": int(answers_N.sum()),
        "accuracy": ratio(right_N, answers_N).to_json(),
        **counted,
    }
    for name, metric in intervention_metrics().items():
        measured[name] = metric.measure(selections, lost)
    measured["seconds"] = time.perf_counter() - start
    return measured


class EpochMetrics(TrainerCallback):
    """Measures the model of transformers' Trainer before the first step and at the end of every
    epoch.

    It writes a line for each measurement (`measure`) into `<folder>/expert_metrics.jsonl`; a
    resumed training continues the file. The callback changes neither weights nor random numbers, so
    the training is the same without it. With several processes, each process measures and the first
    one writes.

    Args:
        rows: mappings with `input_ids` and `labels`.
    """

    def __init__(self, rows: Sequence[TokenizedExample], folder: Path):
        self.rows = rows
        self.folder = Path(folder)
        self.lines: list[dict[str, Any]] = []

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Measure before the first step; a resumed training drops the lines after its
        checkpoint."""
        stored = read_measurements(self.folder)
        self.lines = [line for line in stored if line["step"] <= state.global_step]
        if state.global_step == 0 and not self.lines:
            self._measure(state, model)

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Measure at the end of an epoch and of the training, before the checkpoint of that
        step."""
        if float(state.epoch).is_integer() or state.global_step == state.max_steps:
            self._measure(state, model)

    def _measure(self, state: Any, model: Any) -> None:
        """Add a line of measurements. The first process writes the file."""
        place = {"step": state.global_step, "epoch": float(state.epoch or 0)}
        self.lines.append(plain(place | measure(model, self.rows)))
        if state.is_world_process_zero:
            write_file(self.folder / FILE, "".join(map(json_line, self.lines)))


def read_measurements(folder: Path) -> list[dict[str, Any]]:
    """The lines of a training's expert_metrics.jsonl; none without the file."""
    return read_lines(folder / FILE) or []


def summary(folder: Path) -> dict[str, Any] | None:
    """The summary for training.json: first and last values, and correlations; None without
    measurements."""
    lines = read_measurements(folder)
    if not lines:
        return None
    return {
        "measurements": len(lines),
        "rows": lines[0]["rows"],
        "first": {name: metric.value for name, metric in values_of(lines[0]).items()},
        "last": {name: metric.value for name, metric in values_of(lines[-1]).items()},
        "correlations": correlations(lines),
    }
