"""Study folders as a study leaves them, made by hand."""

import csv
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


def write_study(
    folder: Path,
    values: Sequence[float | None],
    *,
    temperature: Sequence[float] | None = None,
    tuning: str = "tpe",
    **info: Any,
) -> Path:
    """A study whose trials have these values (None: pruned).

    `temperature` is that of the best profile.
    """
    content = {
        "study_id": "s",
        "model": "tiny",
        "family": "olmoe",
        "task": "toy_math",
        "tuning": tuning,
        "metric": "perplexity",
        "direction": "minimize",
        "n": 8,
        "skip_layers": 1,
        "max_temperature": 0.5,
        "cache": "clean",
        "moe_layers": 8,
        "seed": 0,
        "n_trials": len(values),
        "split": "train",
        "samples": {"toy_math": list(range(100))},
        "num_samples": 100,
    } | info
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps(content))
    _write_trials(folder / "trials.csv", values, tuning)
    if temperature is not None:
        (folder / "best.yaml").write_text(yaml.safe_dump({"temperature": list(temperature)}))
    return folder


def _write_trials(path: Path, values: Sequence[float | None], tuning: str) -> None:
    parameter = "params_temperature" if tuning == "uniform" else "params_layer_1"
    lines = [f"number,value,datetime_start,datetime_complete,duration,{parameter},state"]
    for number, value in enumerate(values):
        # Optuna keeps the last intermediate value of a pruned trial as its value
        shown_value, state = ("9.9", "PRUNED") if value is None else (value, "COMPLETE")
        lines.append(
            f"{number},{shown_value},2026-01-01,2026-01-01,0 days,{round(0.05 * number, 2)},{state}"
        )
    lines.append(f"{len(values)},,2026-01-01,,,0.3,RUNNING")
    path.write_text("\n".join(lines) + "\n")


PROFILE = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.05, 0.0]


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def pixels(png):
    """Width and height, from the PNG's header."""
    head = png.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])
