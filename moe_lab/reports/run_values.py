"""The numbers of a run as loggers name them: scores, costs, and the log of its training."""

from collections.abc import Mapping, Sequence

from moe_lab.reports.papers.training_scores import model_folder
from moe_lab.results.model import RunResult
from moe_lab.results.scores import scores_of
from moe_lab.results.stored_files import read_lines
from moe_lab.results.task_scores import reported


def scores(result: RunResult) -> dict[str, object]:
    """The numbers of a run by name. Numbers that do not exist are left out.

    - `<task>/<metric,filter>`: every score, and next to it its standard error
    - `score`, `difference`, `p`, `difference_low`, `difference_high`: the headline score, that of a
      group being the group's own; its difference to the base model, with the p of its test (not
      corrected) and its 95% interval over documents
    - `baseline/<task>/<metric,filter>`: the base model's scores
    - `cost/<name>`
    """
    values: dict[str, object] = {}
    for task, task_scores in result.lm_eval.results.items():
        for metric in reported(task_scores):
            stderr = metric.replace(",", "_stderr,", 1)
            values[f"{task}/{metric}"] = task_scores.get(metric)
            values[f"{task}/{stderr}"] = task_scores.get(stderr)
    values |= _headline(result)
    for task in result.task.tasks:
        for metric, value in result.other_scores(task).items():
            values[f"baseline/{task}/{metric}"] = value
    for name, value in result.cost.known().items():
        values[f"cost/{name}"] = value

    numbers: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers[name] = value
    return numbers


def _headline(result: RunResult) -> dict[str, object]:
    """The headline score of the task or group that was asked for, else of the first task.

    Empty with predict_only.
    """
    if result.metric is None:
        return {}
    task = result.task.tasks[0]
    names = result.task.names
    if len(names) == 1 and result.lm_eval.scores(names[0]):
        task = names[0]
    score = next(score for score in scores_of(result) if score.task == task)
    low, high = score.difference_interval or (None, None)
    return {
        "score": score.value,
        "difference": score.difference,
        "p": score.p,
        "difference_low": low,
        "difference_high": high,
    }


def training_lines(result: RunResult) -> list[dict[str, object]]:
    """The log of the training of a run's model.

    Its keys are `training/<name>`, and by layer `training/<name>/layer_<i>`. Empty if the method
    trained no model, or if the model's folder is gone.
    """
    folder = model_folder(result)
    if folder is None:
        return []
    lines = read_lines(folder / "log.jsonl") or []
    return [_training_line(line) for line in lines]


def _training_line(line: Mapping[str, object]) -> dict[str, object]:
    """A line of a training's log: its numbers, then those by layer."""
    numbers = {}
    of_layers = {}
    for name, value in line.items():
        if isinstance(value, list):
            for layer, layer_value in enumerate(value):
                of_layers[f"training/{name}/layer_{layer}"] = layer_value
        else:
            numbers[f"training/{name}"] = value
    return numbers | of_layers


def by_layer(temperatures: Sequence[float]) -> dict[str, float]:
    """The temperature of every MoE layer, by a key that sorts as the layers do."""
    width = len(str(max(len(temperatures) - 1, 0)))
    values = {}
    for layer, temperature in enumerate(temperatures):
        values[f"temperature/layer_{layer:0{width}d}"] = temperature
    return values
