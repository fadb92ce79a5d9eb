"""The tables of `experiment=`: their cells from stored results, and their files."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError
from moe_lab.reports.csv_rows import write_rows
from moe_lab.reports.frames import typed_frame
from moe_lab.reports.pages.tables_page import write_tables_page
from moe_lab.reports.papers.experiment import TABLES
from moe_lab.reports.papers.files import file_stem
from moe_lab.reports.papers.markdown import markdown
from moe_lab.reports.papers.ranking import p_values
from moe_lab.reports.papers.table import table_of
from moe_lab.results.atomic import json_text, write_file
from moe_lab.results.identity import folder_name
from moe_lab.results.score_table import Family
from moe_lab.results.scores import ComparisonKey
from moe_lab.runs.attempts import Failure
from moe_lab.runs.experiments.cells import NOTHING_STORED, Experiments, filled
from moe_lab.runs.experiments.figures import make_figure
from moe_lab.runs.jobs import digest_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from moe_lab.models.memory import ModelPool
    from moe_lab.runs.run import Outcome


def write_tables(
    experiments: Experiments,
    config: Config,
    models: ModelPool,
    outcomes: Mapping[str, Outcome],
    failures: Sequence[Failure],
    measured: Mapping[ComparisonKey, float | None],
    *,
    compute: bool,
) -> tuple[list[Path], dict[str, DataFrame], Family]:
    """Write the tables and figures. Returns their files, the tables by name, and the families of all comparisons.

    A table of which no cell is measured is only listed on the page. Raises ConfigError with `compute=False` if nothing
    is stored.

    Args:
        outcomes: the stored results, by run id.
        measured: the p of the comparisons in `metrics=`.
    """
    from moe_lab.reports.loggers import open_logger

    tables = [filled(one, config.scale, cells, outcomes, failures) for one, cells in experiments]
    in_tables = {key: p for table in tables for key, p in p_values(*table).items()}
    family = Family.of(in_tables, measured)
    folder = Path(config.output_dir) / "tables"
    unmeasured = [
        experiment.name
        for experiment, cells in tables
        if cells and not any(cell.results or cell.studies for cell in cells)
    ]
    if len(unmeasured) == len(tables) and not compute:
        raise ConfigError(NOTHING_STORED)
    for name in unmeasured:
        why = "No cell is measured: no table is written." if compute else NOTHING_STORED
        print(f"experiment={name}: {why}", file=sys.stderr)
    if len(unmeasured) == len(tables):
        return [], {}, family
    files: list[Path] = []
    frames: dict[str, DataFrame] = {}
    for experiment, cells in tables:
        stem, figures = file_stem(experiment, config.scale), []
        if experiment.name not in unmeasured:
            figures = make_figure(experiment, config.scale, cells, models, folder, family, compute=compute)
            if experiment.figure is not None and not figures:
                for suffix in (".png", ".svg", ".csv"):  # of an earlier figure
                    (folder / f"{stem}-{experiment.figure}{suffix}").unlink(missing_ok=True)
        table = table_of(experiment, config.scale, cells, family, folder)  # it has numbers of the figure
        write_file(folder / f"{stem}.json", json_text(asdict(table)))
        frames[experiment.name] = typed_frame(table.records())
        if experiment.name in unmeasured:
            continue
        if cells and experiment.figure not in TABLES:
            write_rows(table.records(), folder / f"{stem}.csv")
            files.append(write_file(folder / f"{stem}.md", markdown(experiment, table)))
        files += figures
        name = folder_name(stem, digest=digest_of([replace(config, experiment=experiment.name)]))
        with open_logger(config, kind="experiment", name=name, group=config.experiment) as logger:
            logger.log_table(stem, frames[experiment.name])
            for figure in figures:
                if figure.suffix != ".md":
                    logger.log_figure(figure)
    return [*files, write_tables_page(folder)], frames, family
