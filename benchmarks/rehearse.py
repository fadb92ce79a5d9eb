"""Rehearse the papers' experiments: every cell at `scale=paper`, on small models from a hub on
loopback.

    python -m benchmarks.rehearse                              # some 230 cells
    python -m benchmarks.rehearse --all                        # every cell
    python -m benchmarks.rehearse --experiment roe/figure3     # cells of one experiment (or a,b)
    python -m benchmarks.rehearse --worker 0/2                 # the even cells; another does `1/2`
    python -m benchmarks.rehearse --data-dir <folder>          # rows of real data sets

The 230 cells have each experiment, model, method and option. Without `--data-dir` rows of data sets
are generated.

Ids, revisions, data sets, chat templates, the papers' presets and layer lists are the published
ones. Widths, documents, steps and lengths are cut (`cuts`). The result is one table, `cells.jsonl`
in the output folder, with a line per cell: its state, the reason if it is not done, and planned and
measured tokens. The same command continues: it repeats no cell that is done. Exits with 1 if a cell
is neither done nor refused for a reason in REASONS, and if planned tokens are wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.rehearsal.data import SUBJECTS
from benchmarks.rehearsal.hub import stage
from benchmarks.rehearsal.models import CONFIGS, REWARD
from benchmarks.rehearsal.neighbours import demonstrated_tokens, pathway_tokens, watched

if TYPE_CHECKING:
    from moe_lab.config.compose import Cell
    from moe_lab.runs.experiments.cells import PreparedCell
    from moe_lab.runs.experiments.composing import Composed

ENCODERS = ("sentence-transformers/all-MiniLM-L6-v2", "sentence-transformers/all-mpnet-base-v2")
PUBLISHED = (*CONFIGS, REWARD, *ENCODERS)
REASONS = {
    "vectors of a model that needs code of its "
    "own": "there is no such file. Leave method.embeddings out",
}
"""The reasons for which a cell may be refused, each with a part of its message
(docs/figures.md)."""
ON_METHOD = {
    "reference_size": 20,
    "dataset_size": 12,
    "max_steps": 2,
    "trials": 2,
}
"""Keys of methods that have them."""
PRETRAINING = {
    "steps": 2,
    "save_steps": 2,
    "hidden_size": 64,
    "heads": 4,
    "active_size": 64,
    "sequence_length": 64,
    "batch_size": 2,
    "gradient_accumulation": 1,
    "validation_rows": 2,
    "dataset_size": 100,
}


def cuts(cell: Cell, config: Any) -> list[str]:
    """The overrides that make a cell small.

    2 documents, 8 new tokens, 2 trials on 8 documents, 2 optimizer steps, 20 references, 3 subjects
    of MMLU, one seed; where each of 64 samples has a history of its own, texts of at most 264
    tokens and trials on 2 documents.
    """
    method = cell.values["method"]
    tuning = cell.values["tuning"]
    overrides = ["gen_kwargs={max_gen_toks: 8}", "seeds=1"]
    overrides.append("samples=[0,1]" if config.samples else "limit=2")
    if config.task.name == "mmlu":
        subjects = [f"mmlu_{subject}" for subject in SUBJECTS]
        overrides.append(f"task.name=[{','.join(subjects)}]")

    has_own_histories = method["name"] == "roe" and (
        method["cache"] == "none" or config.model.name in ("mixtral", "gpt-oss")
    )
    if has_own_histories:
        overrides.append("max_length=264")
    if tuning["name"] != "none":
        overrides.append(f"tuning.num_samples={2 if has_own_histories else 8}")
    if tuning["name"] == "tpe":
        overrides.append("tuning.n_trials=2")
    if tuning["name"] == "uniform":
        overrides.append(f"tuning.step={tuning['max_temperature'] or 1}")

    of_method = PRETRAINING if method["name"] == "pretrain" else ON_METHOD
    trains_on_references = method.get("dataset") == "reference"
    for key, value in of_method.items():
        is_idle = key == "reference_size" and "dataset" in method and not trains_on_references
        if key in method and not is_idle:
            overrides.append(f"method.{key}={value}")
    if method.get("validation_size"):
        overrides.append("method.validation_size=2")
    return overrides


@dataclass(frozen=True)
class Planned:
    """A cell of an experiment to rehearse."""

    composed: Composed
    cell: Cell

    @property
    def key(self) -> str:
        overrides = []
        for override in self.cell.overrides:
            if not override.startswith("output_dir="):
                overrides.append(override)
        return f"{self.composed.experiment.name}: {' '.join(overrides)}"

    @property
    def options(self) -> set[Any]:
        """What a subset shows at least once: every option, and every model and method of every
        experiment."""
        experiment = self.composed.experiment.name
        values = self.cell.values
        return {
            *self.cell.overrides,
            (experiment, values["model"]["name"]),
            (experiment, values["method"]["name"]),
        }


def subset(cells: Sequence[Planned]) -> list[Planned]:
    """Few cells that have every option of all cells, in their order. Each is the one with the most
    options not seen."""
    unseen: set[Any] = set()
    for cell in cells:
        unseen |= cell.options
    chosen: set[int] = set()
    while unseen:
        best = max(range(len(cells)), key=lambda index: len(cells[index].options & unseen))
        chosen.add(best)
        unseen -= cells[best].options
    return [cells[index] for index in sorted(chosen)]


class Table:
    """The lines of `cells.jsonl`. A cell's last line counts."""

    def __init__(self, file: Path):
        self.file = file
        self.rows: dict[str, dict[str, Any]] = {}
        if file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self.rows[row["cell"]] = row

    def add(self, row: dict[str, Any]) -> None:
        self.rows[row["cell"]] = row
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        line = f"{row['state']:>8} {row['seconds']:7.1f} s  {row['cell']}"
        if row["reason"]:
            line += f"  {row['reason']}"
        print(line, flush=True)


def main() -> int:
    options = _options()
    output = options.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    with stage(output / "hub", PUBLISHED, options.data_dir):
        return _rehearse(options, output)


def _options() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--experiment", default="all", help="names in experiments/, separated by commas"
    )
    parser.add_argument("--all", action="store_true", help="every cell instead of the subset")
    parser.add_argument(
        "--worker", default="0/1", help="<number>/<workers>: the cells of this process"
    )
    parser.add_argument("--data-dir", type=Path, help="folder of local data sets (docs/tasks.md)")
    parser.add_argument("--output", type=Path, default=Path("outputs/rehearsal"))
    parser.add_argument("--only", help="cells with this text in their name")
    return parser.parse_args()


def _rehearse(options: argparse.Namespace, output: Path) -> int:
    from moe_lab.config.compose import compose_cell
    from moe_lab.models.memory import ModelPool
    from moe_lab.runs.config import to_config
    from moe_lab.runs.experiments.composing import compose_experiments
    from moe_lab.tasks.loading import task_cache

    base = compose_cell(
        [f"experiment={options.experiment}", "scale=paper", f"output_dir={output}"], []
    )
    experiments = compose_experiments(to_config(base), base)
    all_cells = []
    for composed in experiments:
        for composed_cell, _ in composed.cells:
            all_cells.append(Planned(composed, composed_cell))
    cells = all_cells if options.all else subset(all_cells)
    if options.only:
        cells = [cell for cell in cells if options.only in cell.key]
    number, workers = map(int, options.worker.split("/"))
    cells = cells[number::workers]

    start = time.monotonic()
    table = Table(output / "cells.jsonl")
    models = ModelPool()
    facts_of: dict[str, Any] = {}
    cells_of: dict[str, list[PreparedCell]] = {
        composed.experiment.name: [] for composed in experiments
    }
    with task_cache():
        for cell in cells:
            if table.rows.get(cell.key, {}).get("state") == "done":
                continue
            prepared_cells = cells_of[cell.composed.experiment.name]
            table.add(rehearsed(cell, models, facts_of, prepared_cells))
        for composed in experiments:
            prepared_cells = cells_of[composed.experiment.name]
            if prepared_cells:
                table.add(_row(_table_key(composed), partial(_draw, composed, prepared_cells)))

    keys = [cell.key for cell in cells] + [_table_key(composed) for composed in experiments]
    rows = [table.rows[key] for key in keys if key in table.rows]
    return _summary(rows, time.monotonic() - start, len(all_cells))


def rehearsed(
    cell: Planned, models: Any, facts_of: dict[str, Any], prepared_cells: list[PreparedCell]
) -> dict[str, Any]:
    """Run one cell. Returns its line of the table, and adds the prepared cell to
    `prepared_cells`."""
    return _row(cell.key, partial(_run, cell, models, facts_of, prepared_cells))


def _table_key(composed: Composed) -> str:
    return f"{composed.experiment.name}: its table"


def _row(name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The line of the table: what `run` returns, or why it failed."""
    from moe_lab.errors import MoeLabError

    start = time.monotonic()
    row = {"cell": name, "state": "failed", "reason": ""}
    try:
        row |= run()
    except Exception as error:
        row["reason"] = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, MoeLabError):
            row["traceback"] = traceback.format_exc()
    if row["state"] != "done" and any(text in row["reason"] for text in REASONS.values()):
        row["state"] = "refused"
    return row | {"seconds": round(time.monotonic() - start, 1)}


def _draw(composed: Composed, cells: list[PreparedCell]) -> dict[str, Any]:
    """The table, the figure and the page of an experiment, of the cells that this process ran."""
    from moe_lab.runs.experiments.cells import PreparedExperiment
    from moe_lab.runs.grid import stored_tables

    stored_tables([PreparedExperiment(composed.experiment, cells)], cells[0].config)
    return {"state": "done"}


def _run(
    planned_cell: Planned,
    models: Any,
    facts_of: dict[str, Any],
    prepared_cells: list[PreparedCell],
) -> dict[str, Any]:
    from moe_lab.config.compose import compose_cell
    from moe_lab.runs.attempts import run_all
    from moe_lab.runs.config import to_config
    from moe_lab.runs.experiments.cells import prepare_cells
    from moe_lab.runs.experiments.composing import ComposedCell

    def small(cell: Cell, config: Any) -> ComposedCell:
        small_cell = compose_cell([*cell.overrides, *cuts(cell, config)], list(cell.config_dirs))
        return ComposedCell(small_cell, to_config(small_cell))

    composed = planned_cell.composed
    config = next(config for cell, config in composed.cells if cell is planned_cell.cell)
    study = composed.study
    if study is not None:
        study = small(compose_cell(study.overrides, []), study).config
    single_cell = replace(composed, cells=[small(planned_cell.cell, config)], study=study)
    [prepared] = prepare_cells(single_cell, facts_of)
    if prepared.error is not None:
        raise prepared.error
    assert prepared.job is not None
    prepared_cells.append(prepared)
    with watched() as pathways:
        outcomes, failures = run_all([prepared.job], models)
    if failures:
        raise failures[0].error
    planned = 0
    measured = 0
    for outcome in outcomes:
        planned_tokens, measured_tokens = _tokens(outcome, pathways)
        planned += planned_tokens
        measured += measured_tokens
    return {
        "state": "done",
        "method": planned_cell.cell.values["method"]["name"],
        "planned": planned,
        "measured": measured,
        "runs": [outcome.run.run_id for outcome in outcomes],
    }


def _tokens(outcome: Any, pathways: Any) -> tuple[int, int]:
    """(planned tokens at the measured number of new tokens, and of the neighbours that were found;
    measured tokens)."""
    from moe_lab.engine.planned import Prompt
    from moe_lab.runs.planning.workload import workload_of

    run = outcome.run
    cost = outcome.results.cost
    workload = workload_of(run)
    answers = sum(len(request.new_tokens) for _, request in workload.asked)
    lengths = _even_lengths(cost.tokens_out, answers)
    parts = []
    for weight, request in workload.asked:
        generated: dict[str, dict[str, Prompt]] = {}
        for settings, prompts in request.generated.items():
            generated[settings] = {}
            for text, prompt in prompts.items():
                new = tuple(next(lengths) for _ in prompt.new)
                generated[settings][text] = Prompt(prompt.ids, new)
        parts.append((weight, replace(request, generated=generated)))
    whole = replace(workload, asked=tuple(parts))
    method = run.config.method.name
    if method == "icl":
        planned = demonstrated_tokens(run)
    elif method == "c3po":
        planned = pathway_tokens(run, pathways, whole)
    else:
        planned = round(run.method.forward_tokens(whole, run.config, run.facts))
    return planned, cost.tokens_in


def _even_lengths(tokens: int, answers: int) -> Iterator[int]:
    """Lengths of answers that have so many tokens together.

    Which answers ended early is not known: all have the same length, or one more.
    """
    while answers:
        length = math.ceil(tokens / answers)
        yield length
        tokens -= length
        answers -= 1


def _summary(rows: Sequence[dict[str, Any]], seconds: float, cells: int) -> int:
    states = Counter(row["state"] for row in rows)
    print(f"\n{len(rows)} of {cells} cells in {seconds / 60:.1f} minutes: {dict(states)}")
    wrong = [row for row in rows if row.get("planned") != row.get("measured")]
    exact = sum("planned" in row for row in rows) - len(wrong)
    print(
        f"Planned tokens are those that were measured in {exact} cells, and wrong in {len(wrong)}:"
    )
    for row in wrong:
        print(f"{row['planned']:9,} {row['measured']:9,}  {row['cell'][:150]}")
    reasons = Counter(row["reason"] for row in rows if row["state"] != "done")
    for reason, count in reasons.most_common():
        print(f"{count:5} {reason}")
    return int(states["failed"] > 0 or len(wrong) > 0)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
