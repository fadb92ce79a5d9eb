"""The expert metrics of a model while it is trained by transformers' Trainer.

    trainer.add_callback(ExpertMetrics(rows, folder, plot=write_training_metrics))

`rows` are mappings with `input_ids` and `labels`. The callback measures before the first step and at the end of every
epoch, and writes a line per measurement (`training_metrics.measure`) into `<folder>/expert_metrics.jsonl`. `plot` takes
the lines and `<folder>/figures` when the training ends (`moe_lab.reports.figures.epochs.write_training_metrics`).

The callback changes neither weights nor random numbers, so the training is the same without it. Under several processes
each process measures, and the first one writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from moe_lab.metrics.correlations import correlations, values_of
from moe_lab.metrics.teacher_forcing import TokenizedExample
from moe_lab.results.atomic import plain, write_atomically, writing
from moe_lab.results.stored_files import read_lines

FILE = "expert_metrics.jsonl"
Plot = Callable[[Sequence[dict[str, Any]], Path], Any]


class ExpertMetrics(TrainerCallback):
    """Measures a Trainer's model on held-out rows; a resumed training continues the file."""

    def __init__(self, rows: Sequence[TokenizedExample], folder: Path, plot: Plot):
        self.rows = rows
        self.plot = plot
        self.folder = Path(folder)
        self.lines: list[dict[str, Any]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Measure before the first step; a resumed training drops the lines after its checkpoint."""
        self.lines = [line for line in read_measurements(self.folder) if line["step"] <= state.global_step]
        if state.global_step == 0 and not self.lines:
            self._measure(state, model)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Measure at the end of an epoch and of the training, before the checkpoint of that step."""
        if float(state.epoch).is_integer() or state.global_step == state.max_steps:
            self._measure(state, model)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.lines:
            self.plot(self.lines, self.folder / "figures")

    def _measure(self, state: Any, model: Any) -> None:
        from moe_lab.metrics.training_metrics import measure

        place = {"step": state.global_step, "epoch": float(state.epoch or 0)}
        self.lines.append(plain(place | measure(model, self.rows)))
        if state.is_world_process_zero:
            with writing(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / FILE, "".join(json.dumps(line) + "\n" for line in self.lines))


def read_measurements(folder: Path) -> list[dict[str, Any]]:
    """The lines of a training's expert_metrics.jsonl; none where there is no such file."""
    return read_lines(folder / FILE) or []


def summary(folder: Path) -> dict[str, Any] | None:
    """The summary in training.json: first and last values, and correlations; None without measurements."""
    lines = read_measurements(folder)
    if not lines:
        return None
    return {
        "measurements": len(lines),
        "rows": lines[0]["rows"],
        "first": values_of(lines[0]),
        "last": values_of(lines[-1]),
        "correlations": correlations(lines),
    }
