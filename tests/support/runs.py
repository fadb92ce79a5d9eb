"""Small local data and configurations of runs over it."""

import json
from pathlib import Path
from typing import Any

from moe_lab.config.schema import Config, ModelConfig, TaskConfig, TuningConfig
from moe_lab.methods import get_method
from moe_lab.models.facts import ModelFacts
from moe_lab.tasks.loading import load_tasks


def write_jsonl(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def sums(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Rows as AddSub, SVAMP and the like have them."""
    return [
        {"question": f"Ann has {i} pens and buys 2. How many now?", "answer": f"{i + 2}"}
        for i in range(start, start + count)
    ]


def worked_sums(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Rows as GSM8K has them: the same questions with a worked answer."""
    return [
        row | {"answer": f"{i} + 2 = {row['answer']}\n#### {row['answer']}"}
        for i, row in enumerate(sums(count, start), start=start)
    ]


def choices(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Rows as ARC has them."""
    labels = {"text": ["red", "green", "blue"], "label": ["A", "B", "C"]}
    return [
        {
            "id": f"q{i}",
            "question": f"Which colour is number {i}?",
            "choices": labels,
            "answerKey": "ABC"[i % 3],
        }
        for i in range(start, start + count)
    ]


def arc(folder: Path, answers: str = "ABCABC") -> Path:
    """A data_dir with six questions whose right answers are those letters,
    and 48 in the train split."""
    test = [row | {"answerKey": answer} for row, answer in zip(choices(6), answers, strict=True)]
    write_jsonl(folder / "arc_easy" / "test.jsonl", test)
    write_jsonl(folder / "arc_easy" / "train.jsonl", choices(60)[12:])
    return folder


def small_data(folder: Path) -> Path:
    """A data_dir with `addsub` (12 documents), `arc_easy` (10) and `gsm8k` (5).

    `arc_easy` has 6 few-shot examples, `gsm8k` has 4.
    """
    write_jsonl(folder / "addsub" / "test.jsonl", sums(12))
    write_jsonl(folder / "arc_easy" / "test.jsonl", choices(10))
    write_jsonl(folder / "arc_easy" / "train.jsonl", choices(6, start=100))
    write_jsonl(folder / "gsm8k" / "test.jsonl", worked_sums(5))
    write_jsonl(folder / "gsm8k" / "train.jsonl", worked_sums(4, start=5))
    return folder


def config(
    model: Path | str,
    data: Path,
    output: Path,
    task: str = "arc_easy",
    method: str = "base",
    **keys: Any,
) -> Config:
    """A configuration as the command line would make it; `method_keys` go to the method."""
    method_keys = keys.pop("method_keys", {})
    return Config(
        model=ModelConfig(name="small", path=str(model)),
        method=get_method(method).Config(**{"name": method, **method_keys}),
        task=keys.pop("task_config", TaskConfig(name=task)),
        data_dir=str(data),
        output_dir=str(output),
        **{"device": "cpu", "offline": True, **keys},
    )


def load_task(data: Path | None, name: str, **keys: Any) -> Any:
    """A loaded task; `keys` are those of TaskConfig and of Config."""
    of_task = {key: keys.pop(key) for key in [*keys] if key in TaskConfig.__dataclass_fields__}
    config = Config(task=TaskConfig(name=name, **of_task), data_dir=data and str(data), **keys)
    return next(iter(load_tasks(config)["tasks"].values()))


def facts(family: str = "olmoe", moe_layers: int = 8) -> ModelFacts:
    return ModelFacts(
        name="m",
        path=None,
        revision=None,
        commit=None,
        family=family,
        dtype="float32",
        moe_layers=moe_layers,
        experts=8,
        top_k=2,
        max_length=64,
    )


def tuned(tiny_olmoe_dir, data, tmp_path, task, **keys) -> Config:
    tuning = {"name": "tpe", "num_samples": 4, "n_trials": 3} | keys.pop("tuning", {})
    run_config = config(
        tiny_olmoe_dir, data, tmp_path, task, "roe", tuning=TuningConfig(**tuning), **keys
    )
    run_config.data_dir = None if task.startswith("toy") else run_config.data_dir
    return run_config
