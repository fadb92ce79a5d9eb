"""The loss curve of a training, of its log.jsonl: figures/loss.png and .csv."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from moe_lab.reports.figures.style import BLUE, GREY, ORANGE, panels, write_figure
from moe_lab.results.stored_files import read_lines


def write_training_loss(folder: Path, held_out: str) -> None:
    """Draw the loss by step into `<folder>/figures`, with that on held-out rows, which the log calls `held_out`."""
    lines = read_lines(folder / "log.jsonl") or []
    columns = ("step", "phase", "loss", "learning_rate", held_out)
    rows = [{key: line.get(key) for key in columns} for line in lines]

    def draw() -> Any:
        figure, (axis,) = panels(1)
        for key, color, label in (("loss", BLUE, "training"), (held_out, ORANGE, "validation")):
            points = [(row["step"], row[key]) for row in rows if row[key] is not None]
            if points:
                axis.plot(
                    *zip(*points, strict=True),
                    color=color,
                    label=label,
                    marker="o" if key == held_out else "",
                )
        for before, after in pairwise(row for row in lines if row.get("phase") is not None):
            if before["phase"] != after["phase"]:
                axis.axvline(before["step"], color=GREY, ls="--", lw=1)
        axis.set(xlabel="optimizer step", ylabel="loss per token")
        axis.legend()
        return figure

    write_figure(draw, rows, folder / "figures", "loss")
