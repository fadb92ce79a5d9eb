"""Stored evaluations compared, example by example."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.config.arguments import wrong
from moe_lab.config.paths import user_path
from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_line
from moe_lab.errors import ConfigError
from moe_lab.reports.columns import Shown, TableWithNotes
from moe_lab.reports.comparison import comparison_columns, print_comparison
from moe_lab.reports.frames import typed_frame

if TYPE_CHECKING:
    import pandas as pd

    from moe_lab.results.comparisons.comparison import Comparison

KEYS = ("mode", "a", "b", "output_dir")
"""The keys that mode=compare reads."""


class Compared(Shown):
    """Evaluations of the same examples, each compared with the first one.

    `file` is comparison.json, which also has the prompts and answers of all changed examples, and
    `page` its HTML page. `notes` says what is left out and what else differs, a sentence each.
    """

    exit_code = 0

    def __init__(self, comparison: Comparison, file: Path, page: Path):
        self._comparison = comparison
        self.file = file
        self.page = page
        self.notes = comparison.notes

    def __len__(self) -> int:
        """The number of compared scores."""
        return len(self._comparison.scores)

    def frame(self) -> pd.DataFrame:
        """One row per evaluation, task and metric, with the columns of `Results.frame`.

        `run` is "b", or "b1", "b2" and so on, and `compared_with` is "a": `difference` is `value`
        minus `other_value`, `p_holm` is corrected for all rows. `verdict` says which is better.
        """
        rows = []
        for score in self._comparison.scores:
            rows.append({"run": score.run_id} | score.columns() | {"verdict": score.verdict})
        return typed_frame(rows)

    def print(self) -> None:
        """Print the table, and the paths of the page and the file, as the command does."""
        print_comparison(self._comparison)
        print_line(str(self.page))
        print_line(str(self.file))

    def _table_with_notes(self) -> TableWithNotes:
        """The table, and the lines below it: what each evaluation is, and the notes."""
        footnotes = []
        for evaluation in self._comparison.evaluations:
            name = f"{evaluation.key}: {evaluation.label} {evaluation.settings}"
            footnotes.append(name.rstrip())
        columns = comparison_columns(self._comparison)
        return TableWithNotes(columns, [*footnotes, *self.notes])


def compare(
    first: str | PathLike[str],
    *others: str | PathLike[str],
    output_dir: str | PathLike[str] = "outputs",
) -> Compared:
    """Compare stored evaluations with the first, example by example: `moe_lab.compare("a", "b")`.

    It is `mode=compare` of the command: the comparison and its page are written to
    `<output_dir>/comparisons`.

    Args:
        first, others: folders of runs (`results.runs[0].folder`), results files or output folders
            of lm-eval with `--log_samples`.

    Raises ConfigError where they have no task in common, or other examples of one, and DamagedError
    for a file that cannot be read.
    """
    from moe_lab.reports.pages.comparison_page import write_comparison_page
    from moe_lab.results.atomic import json_text, write_file
    from moe_lab.results.comparisons.comparison import compare as comparison_of
    from moe_lab.results.comparisons.evaluation import read_evaluation
    from moe_lab.results.names import folder_name, task_label

    for path in (first, *others):
        if not isinstance(path, str | PathLike):
            raise wrong("moe_lab.compare(first, *others)", path, "give paths of stored evaluations")
    if not others:
        raise wrong("moe_lab.compare(first, *others)", str(first), "give a second evaluation")

    evaluations = [read_evaluation("a", user_path(first))]
    for number, path in enumerate(others, 1):
        key = "b" if len(others) == 1 else f"b{number}"
        evaluations.append(read_evaluation(key, user_path(path)))
    files = {evaluation.file.resolve() for evaluation in evaluations}
    if len(files) < len(evaluations):
        raise ConfigError("a= and b= name the same result twice. Give different ones.")
    comparison = comparison_of(evaluations)

    labels = task_label([evaluation.label for evaluation in comparison.evaluations])
    name = folder_name(labels, digest=_digest_of_samples(comparison))
    folder = user_path(output_dir) / "comparisons" / name
    file = write_file(folder / "comparison.json", json_text(comparison))
    page = write_comparison_page(comparison, file.with_suffix(".html"))
    return Compared(comparison, file, page)


def _digest_of_samples(comparison: Comparison) -> str:
    """SHA-256 of the content of the sample logs, so that the same command writes the same files."""
    digest = hashlib.sha256()
    for evaluation in comparison.evaluations:
        for log in evaluation.samples_files.values():
            digest.update(hashlib.sha256(log.read_bytes()).digest())
    return digest.hexdigest()


def compare_stored(configs: Sequence[Config]) -> Compared:
    """`compare` for mode=compare of the command. Raises ConfigError for a grid, and for keys that
    it does not read."""
    if len(configs) > 1:
        raise ConfigError(
            "mode=compare takes no grid. Leave out -m; b= takes several, separated by commas."
        )
    [config] = configs
    for override in config.overrides:
        if override.partition("=")[0].lstrip("+") not in KEYS:
            raise ConfigError(
                f"mode=compare reads stored results; {override} changes nothing. Leave it out."
            )
    assert config.a is not None and config.b is not None
    others = [path.strip() for path in config.b.split(",")]
    return compare(config.a, *others, output_dir=config.output_dir)
