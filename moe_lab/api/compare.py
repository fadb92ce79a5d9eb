"""Stored evaluations compared, example by example."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.api.shown import Shown
from moe_lab.config.arguments import wrong
from moe_lab.reports.columns import Column
from moe_lab.reports.frames import typed_frame
from moe_lab.reports.terminal import comparison_columns
from moe_lab.runs.compare import compared

if TYPE_CHECKING:
    import pandas as pd

    from moe_lab.results.comparisons.comparison import Comparison


class Compared(Shown):
    """Evaluations of the same examples, each compared with the first one.

    `file` is comparison.json, which also has the prompts and answers of all changed examples, and `page` its HTML page.
    `notes` says what is left out and what else differs, a sentence each.
    """

    def __init__(self, comparison: Comparison, file: Path, page: Path):
        self._comparison = comparison
        self.file, self.page = file, page
        self.notes = comparison.notes

    def __len__(self) -> int:
        return len(self._comparison.scores)

    def frame(self) -> pd.DataFrame:
        """One row per evaluation, task and metric, with the columns of `Results.frame`.

        `run` is "b", or "b1", "b2" and so on, and `compared_with` is "a": `difference` is `value` minus `other_value`,
        `p_holm` is corrected for all rows. `verdict` says which is better.
        """
        scores = self._comparison.scores
        return typed_frame([{"run": one.run_id} | one.columns() | {"verdict": one.verdict} for one in scores])

    def _columns(self) -> tuple[list[Column], list[str]]:
        named = [f"{one.key}: {one.label} {one.settings}".rstrip() for one in self._comparison.evaluations]
        return comparison_columns(self._comparison), [*named, *self.notes]


def compare(
    first: str | PathLike[str], *others: str | PathLike[str], output_dir: str | PathLike[str] = "outputs"
) -> Compared:
    """Compare stored evaluations with the first, example by example: `moe_lab.compare("a", "b")`.

    It is `mode=compare` of the command: the comparison and its page are written to `<output_dir>/comparisons`.

    Args:
        first, others: folders of runs (`results.runs[0].folder`), results files or output folders of lm-eval with
            `--log_samples`.

    Raises ConfigError where they have no task in common, or other examples of one, and DamagedError for a file that
    cannot be read.
    """
    for path in (first, *others):
        if not isinstance(path, str | PathLike):
            raise wrong("moe_lab.compare(first, *others)", path, "give paths of stored evaluations")
    if not others:
        raise wrong("moe_lab.compare(first, *others)", str(first), "give a second evaluation")
    paths: list[Any] = [Path(path) for path in others]
    return Compared(*compared(Path(first), paths, Path(output_dir)))
