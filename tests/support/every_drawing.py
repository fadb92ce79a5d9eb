"""A drawing of every kind of figure from a few rows, with names as long as those
of the papers' experiments."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from moe_lab.reports.figures.comparisons import (
    draw_accuracy,
    draw_control,
    draw_effects,
    draw_forest,
)
from moe_lab.reports.figures.cost import draw_equivalent, draw_overhead, draw_quality_cost
from moe_lab.reports.figures.curves import draw_epochs, draw_flops, draw_lines
from moe_lab.reports.figures.differences import draw_differences
from moe_lab.reports.figures.drawing import Drawing
from moe_lab.reports.figures.pathways import draw_activation, draw_sample
from moe_lab.reports.figures.schedules import draw_schedules
from moe_lab.reports.figures.stored_studies import read_study
from moe_lab.reports.figures.studies import draw_heatmap, draw_history, draw_sweep
from moe_lab.reports.figures.traces import draw_retained, draw_steps
from moe_lab.reports.figures.training import draw_designs, draw_training_curves
from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import MEASURE, Experiment, Scale
from moe_lab.reports.papers.published import Published
from moe_lab.reports.score_line import ScoreLine
from moe_lab.results.model import RunResult
from moe_lab.results.score import NO_SCORE
from tests.support.runs import write_jsonl
from tests.support.stored_results import (
    cell_table,
    changed,
    expert_results,
    overhead_cell,
    results_of,
)
from tests.support.stored_studies import PROFILE, write_study
from tests.support.stored_traces import c3po_results, run_of
from tests.support.trained_cells import cell, design_cells, experiment, trained_results
from tests.support.views import family_of

TITLE = "RoE, Figure 3: accuracy of base and RoE on each task (scale paper, limit=200)"
PAIRED = {"difference": 0.1, "ci95": [0.05, 0.15], "p_mcnemar": 0.001}


def experiment_of(**keys: Any) -> Experiment:
    settings: dict[str, Any] = {
        "name": "own/e",
        "title": "T",
        "source": "S",
        "scales": {"tiny": Scale()},
        "metric": "headline",
        "paper": [],
    }
    return Experiment(**settings | keys)


def result_on(task: str, name: str, value: float, **changes: Any) -> RunResult:
    """A result on one task, with an interval."""
    block = {
        "task": {"name": task, "tasks": [task], "metric": "acc,none"},
        "samples": {task: list(range(200))},
        "intervals": {task: {"acc,none": [value - 0.1, value + 0.1]}},
    }
    result = results_of(name, value, **block | changes)
    return changed(result, results={task: {"acc,none": value}})


def placed_cell(result: RunResult, **coordinates: str) -> TableCell:
    place = {key.replace("__", "."): value for key, value in coordinates.items()}
    return TableCell(coordinates=place, run_id=result.run_id, results=[result])


def accuracy(folder: Path) -> Drawing:
    """Two methods on five tasks."""
    tasks = [
        "gsm8k",
        "social_iqa_answer_format",
        "hellaswag_answer_format",
        "arc_easy",
        "humaneval_plus",
    ]
    cells = []
    for task in tasks:
        for method, value in (("base", 0.5), ("roe", 0.6)):
            cells.append(placed_cell(result_on(task, method, value), task=task, method=method))
    paper = [
        Published(cell={"task": "gsm8k", "method": "base"}, value=45.0, unit="percent", place="T")
    ]
    return draw_accuracy(
        CellTable(experiment_of(rows=["task"], columns=["method"], paper=paper), cells)
    )


def control(folder: Path) -> Drawing:
    """Two tasks: the base model with 4 and 8 experts, RoE with 1, 2 and 4 routing samples."""
    cells = []
    for task in ("gsm8k", "hellaswag_answer_format"):
        for experts in (4, 8):
            model = {"name": "olmoe", "top_k": experts}
            cells.append(placed_cell(result_on(task, "base", 0.5, model=model)))
        for n in (1, 2, 4):
            cells.append(
                placed_cell(result_on(task, "roe", 0.6, n=n, model={"name": "olmoe", "top_k": 4}))
            )
    return draw_control(cell_table(*cells))


def settings_table(folder: Path) -> CellTable:
    """The base model and two settings of C3PO on two tasks, with an average."""
    cells = []
    for task in ("arc_challenge", "hellaswag_answer_format"):
        cells.append(
            placed_cell(
                result_on(task, "base", 0.5), method="base", method__optimizer="-", task=task
            )
        )
        for optimizer, value in (("kernel regression", 0.6), ("gradient descent", 0.7)):
            paired = {task: {"acc,none": PAIRED}}
            result = result_on(task, "c3po", value, paired=paired, run_id=f"{task}{optimizer}")
            cells.append(placed_cell(result, method="c3po", method__optimizer=optimizer, task=task))
    experiment = experiment_of(
        rows=["method", "method.optimizer"], columns=["task"], average="task"
    )
    return CellTable(experiment, cells, family_of(experiment, cells))


def forest(folder: Path) -> Drawing:
    return draw_forest(settings_table(folder))


def effects(folder: Path) -> Drawing:
    return draw_effects(settings_table(folder))


LONG = (
    "steer, "
    "steer=/home/somebody/experiments/steering/vectors-of-honesty-and-others.safetensors scale=4"
)


def differences(folder: Path) -> Drawing:
    """The figure of a tuned command's page.

    It compares RoE with base and calibration, and calibration with base.
    """
    lines = []
    for label, difference in (
        ("roe, n=16", -0.08),
        ("roe, n=16, minus calibration", -0.04),
        (LONG, -0.03),
    ):
        limits = (difference - 0.01, difference + 0.01)
        score = replace(
            NO_SCORE,
            task="toy_text",
            metric="bits_per_byte,none",
            n=100,
            lower_is_better=True,
            difference=difference,
            difference_interval=limits,
            p_holm=0.0001,
        )
        lines.append(ScoreLine(score, label))
    return Drawing([{}], lambda title: draw_differences([lines], ["toy_text, 100 examples"], title))


def overhead(folder: Path) -> Drawing:
    """The clean cache and no cache with 1, 8 and 64 routing samples; without a meter of power."""
    cells = []
    for n in (1, 8, 64):
        cells.append(overhead_cell(n, float(n)))
        cells.append(overhead_cell(n, 4.0 * n, cache="none"))
    return draw_overhead(cell_table(*cells))


EQUIVALENT = {
    "model": "olmoe",
    "device": "NVIDIA H200",
    "task": "gsm8k",
    "documents": 100,
    "new_tokens": 128,
    "layers": 8,
    "equivalent_layers": 9,
    "calibrated_size_ratio": 1.05,
    "size_ratio": 1.1,
    "size_ratio_low": 1.0,
    "size_ratio_high": 1.2,
}


def equivalent(folder: Path) -> Drawing:
    """RoE with 2, 4 and 8 routing samples."""
    measured = {
        "base_milliseconds_per_token": 1.0,
        "base_mebibytes": 1.0,
        "roe_milliseconds_per_token": 1.2,
        "roe_mebibytes": 1.2,
        "equivalent_milliseconds_per_token": 1.4,
        "equivalent_mebibytes": 1.4,
    }
    return draw_equivalent([EQUIVALENT | measured | {"n": n} for n in (2, 4, 8)])


def quality_cost(folder: Path) -> Drawing:
    """Three methods next to the base model on two tasks."""
    cells = []
    for task in ("gsm8k", "hellaswag_answer_format"):
        for method, n, tokens in (
            ("base", "-", 100),
            ("roe", "8", 800),
            ("c3po", "-", 300),
            ("top-p", "-", 100),
        ):
            cost = results_of()["moe_lab"]["cost"] | {"tokens_in": tokens}
            paired = {} if method == "base" else {"paired": {task: {"acc,none": PAIRED}}}
            result = result_on(task, method, 0.5, cost=cost, run_id=f"{method}{task}", **paired)
            cells.append(placed_cell(result, model="olmoe", method=method, method__n=n, task=task))
    table = experiment_of(rows=["model", "method", "method.n"], columns=["task"])
    return draw_quality_cost(CellTable(table, cells, family_of(table, cells)))


def epochs(folder: Path) -> Drawing:
    """The expert metrics of two trainings, each measured three times."""
    for name in ("one", "two"):
        lines = []
        for step, value in enumerate((0.1, 0.3, 0.2)):
            capacity = {"value": value, "ci95": None}
            line = {"load_balance": {"value": 3 + value, "ci95": [2.9 + value, 3.1 + value]}}
            line |= {"collaboration": {"value": 2 + value, "ci95": None}}
            line |= {"capacity": {"least": capacity, "most": capacity}, "specialization": capacity}
            lines.append({"step": step, "epoch": step / 2, **line})
        write_jsonl(folder / "models" / name / "expert_metrics.jsonl", lines)
    cells = []
    for name, schedule in (("one", "none-router"), ("two", "experts")):
        epochs_result = expert_results(finetune_freeze={"model": name, "training": {}})
        result = epochs_result.model_copy(update={"folder": folder / "runs" / name})
        cells.append(placed_cell(result, model="olmoe-base", method__schedule=schedule))
    return draw_epochs(CellTable(experiment_of(rows=["model"], columns=["method.schedule"]), cells))


def flops(folder: Path) -> Drawing:
    """The base model, and C3PO with 8, 16 and all 64 core experts."""
    return flops_drawing([(8, 0.3, 0.52), (16, 0.9, 0.58), (None, 2.0, 0.6)])


def flops_drawing(points: Sequence[tuple[int | None, float, float]]) -> Drawing:
    """`points`: core experts, TFLOPs per question and accuracy of runs of C3PO.

    The base model's accuracy is 0.5.
    """
    model = {"name": "olmoe", "top_k": 8, "experts": 64}
    shared = {"model": model, "samples": {"t": list(range(200))}}
    cells = [placed_cell(results_of(method="base", value=0.5, **shared))]
    for core, tera, value in points:
        result = c3po_results(
            core,
            c3po={
                "core_experts": core,
                "flops_per_sample": tera * 1e12,
                "flops_plain_per_sample": 1e11,
            },
            intervals={"t": {"acc,none": [value - 0.1, value + 0.1]}},
            baseline={"run_id": "b", "results": {"t": {"acc,none": 0.5}}},
            **shared,
        )
        cells.append(placed_cell(changed(result, results={"t": {"acc,none": value}})))
    return draw_flops(cell_table(*cells))


def lines(folder: Path) -> Drawing:
    """Two measures of two models against the learning rate of the routers."""
    measures = {"Load Balance": "expert.load_balance", "accuracy": "headline"}
    axes = {"rows": ["method.router_lr"], "columns": ["model", MEASURE], "metric": measures}
    cells = [
        cell(value, metric, model=model, measure=name, method__router_lr=rate)
        for model in ("olmoe-base", "deepseek-moe")
        for rate, value in (("1e-05", 0.4), ("2e-05", 0.5), ("0.0001", 0.6))
        for name, metric in measures.items()
    ]
    return draw_lines(CellTable(experiment_of(**axes), cells))


def schedules(folder: Path) -> Drawing:
    """The base model and three freezing schedules on two tasks, with their average."""
    settings = [
        ("base", "-", 0.1),
        ("finetune-freeze", "none-router", 0.5),
        ("finetune-freeze", "experts", 0.7),
        ("finetune-freeze", "router-none", 0.6),
    ]
    cells = []
    for method, schedule, value in settings:
        place = {"method": method, "method__schedule": schedule}
        cells.append(cell(value, **place, task="arc_challenge"))
        cells.append(cell(value + 0.2, **place, task="commonsense_qa"))
    axes = {"rows": ["method", "method.schedule"], "columns": ["task"], "average": "task"}
    paper = [
        Published(
            cell={"method.schedule": "experts", "task": "average"},
            value=65.0,
            unit="percent",
            place="T",
        )
    ]
    return draw_schedules(CellTable(experiment_of(**axes, paper=paper), cells))


def activation(folder: Path) -> Drawing:
    return draw_activation([run_of(folder / "a", ["BA", "AA"]), run_of(folder / "b", ["BA", "AA"])])


def sample(folder: Path) -> Drawing:
    return draw_sample([run_of(folder / "a", ["BA", "AA"])])


def steps(folder: Path) -> Drawing:
    return draw_steps([run_of(folder / "a", ["BAA", "AAA", "ABA"])])


def retained(folder: Path) -> Drawing:
    return draw_retained([run_of(folder / "a", ["BA", "AA"]), run_of(folder / "b", ["BA", "AA"])])


def history(folder: Path) -> Drawing:
    """A study with a pruned trial, and one of another task."""
    info = {"model": "olmoe", "temperature": PROFILE}
    first = write_study(folder / "a", [2.0, 2.5, None, 1.5, 1.75], task="gsm8k", **info)
    second = write_study(
        folder / "b", [2.0, 2.5, 1.5], task="hellaswag_answer_format", cache="standard", **info
    )
    return draw_history([read_study(first), read_study(second)])


def sweep(folder: Path) -> Drawing:
    accuracy = {
        "metric": "accuracy",
        "direction": "maximize",
        "tuning": "uniform",
        "temperature": PROFILE,
    }
    first = write_study(folder / "a", [0.5, 0.52, 0.51], model="olmoe", **accuracy)
    return draw_sweep([read_study(first)])


def heatmap(folder: Path) -> Drawing:
    """Two models, one with two tasks."""
    studies = [
        write_study(
            folder / f"{model}{task}", [2.0, 1.0], model=model, task=task, temperature=PROFILE
        )
        for model, task in (
            ("olmoe", "gsm8k"),
            ("olmoe", "hellaswag_answer_format"),
            ("mixtral", "gsm8k"),
        )
    ]
    return draw_heatmap([read_study(study) for study in studies])


def designs(folder: Path) -> Drawing:
    """Two granularities with two routers next to a dense model: two panels."""
    cells = []
    for label, backbone in (
        ("2/8", "olmoe"),
        ("2/8", "deepseek"),
        ("16/64", "olmoe"),
        ("16/64", "deepseek"),
        ("dense", "dense"),
    ):
        coordinates = {"method.backbone": backbone}
        cells += design_cells(label, [[2.0, 2.2]], coordinates=coordinates)
    axes = {"rows": ["method.label"], "columns": ["method.backbone", "task", MEASURE]}
    return draw_designs(CellTable(experiment(**axes), cells))


def training_curves(folder: Path) -> Drawing:
    """Two granularities with two seeds, with and without shared experts."""
    axes = {
        "rows": ["method.label"],
        "columns": ["method.regularizers", "method.shared_experts", MEASURE],
    }
    cells = []
    for label, loss in (("2/8", 3.0), ("16/64", 2.9)):
        for shared in ("0", "1"):
            place = {"method.regularizers": "z-loss", "method.shared_experts": shared}
            name = f"{label.replace('/', '-')}-{shared}-"
            for seed in (0, 1):
                log = [
                    {"loss": loss + seed / 10 - step / 100, "step": step} for step in (20, 40, 60)
                ]
                write_jsonl(folder / "models" / f"{name}{seed}" / "log.jsonl", log)
            for design_cell in design_cells(label, [[2.0, 2.0]], coordinates=place):
                design_cell.results.clear()
                for seed in (0, 1):
                    pretrain = {
                        "model": f"{name}{seed}",
                        "training": {"validation": {"loss": 2.0, "ci95": None}},
                    }
                    result = trained_results(
                        [2.0, 2.2], seed=seed, run_id=f"{name}{seed}", pretrain=pretrain
                    )
                    design_cell.results.append(
                        result.model_copy(update={"folder": folder / "runs" / "r"})
                    )
                cells.append(design_cell)
    return draw_training_curves(CellTable(experiment(**axes), cells))


DRAWINGS: dict[str, Callable[[Path], Drawing]] = {
    "accuracy": accuracy,
    "control": control,
    "forest": forest,
    "effects": effects,
    "differences": differences,
    "overhead": overhead,
    "equivalent": equivalent,
    "quality_cost": quality_cost,
    "epochs": epochs,
    "flops": flops,
    "lines": lines,
    "schedules": schedules,
    "activation": activation,
    "sample": sample,
    "steps": steps,
    "retained": retained,
    "history": history,
    "sweep": sweep,
    "heatmap": heatmap,
    "designs": designs,
    "training_curves": training_curves,
}
"""Drawings by kind: the kinds of `papers/figure_kinds.py: FIGURES`, and `differences`, the figure
of pages and of `Results.plot`."""


# As many tasks, methods and layers as the papers have


def many_tasks(folder: Path) -> Drawing:
    """RoE's Figure 3 at scale paper: 17 tasks with and without a chat template, for two models."""
    tasks = ["gsm8k", "addsub", "svamp", "multiarith", "singleeq", "humaneval", "humaneval_plus"]
    for task in ("social_iqa", "openbookqa", "hellaswag", "arc_easy", "arc_challenge"):
        tasks += [task, f"{task}_answer_format"]
    cells = []
    for model, task, chat in product(("olmoe", "mixtral"), tasks, ("true", "false")):
        for method, value in (("base", 0.5), ("roe", 0.6)):
            result = result_on(task, method, value, model={"name": model})
            cells.append(placed_cell(result, task=task, method=method, apply_chat_template=chat))
    axes = {"rows": ["task", "apply_chat_template"], "columns": ["method"]}
    return draw_accuracy(CellTable(experiment_of(**axes), cells))


def many_panels(folder: Path) -> Drawing:
    """RoE next to the base model with up to 256 experts, on five tasks."""
    cells = []
    for task in (
        "gsm8k",
        "hellaswag_answer_format",
        "arc_challenge",
        "openbookqa",
        "commonsense_qa",
    ):
        for experts in (8, 16, 32, 64):
            model = {"name": "olmoe-0125-instruct", "top_k": experts}
            cells.append(placed_cell(result_on(task, "base", 0.5, model=model)))
        for n in (1, 2, 4, 8, 16, 32):
            model = {"name": "olmoe-0125-instruct", "top_k": 8}
            cells.append(placed_cell(result_on(task, "roe", 0.6, n=n, model=model)))
    return draw_control(cell_table(*cells))


def many_layers(folder: Path) -> Drawing:
    """OLMoE's 16 layers, 14 of them at the bound of their search."""
    temperatures = [0.0, *[0.5] * 14, 0.0]
    at_bound = [f"layer_{layer}" for layer in range(1, 15)]
    best = yaml.safe_dump({"temperature": temperatures, "at_bound": at_bound})
    studies = []
    for task in ("gsm8k", "hellaswag_answer_format"):
        study = write_study(folder / task, [2.0, 1.0], model="olmoe", task=task)
        (study / "best.yaml").write_text(best)
        studies.append(read_study(study))
    return draw_heatmap(studies)


def close_points(folder: Path) -> Drawing:
    """Four numbers of core experts that cost about the same."""
    return flops_drawing(
        [(8, 0.3, 0.52), (12, 0.32, 0.521), (16, 0.36, 0.53), (20, 0.38, 0.531), (None, 2.0, 0.6)]
    )


CROWDED: dict[str, Callable[[Path], Drawing]] = {
    "accuracy": many_tasks,
    "control": many_panels,
    "heatmap": many_layers,
    "flops": close_points,
}
"""Kinds whose panels can be full."""
