"""Stored evaluations compared, example by example."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.api.shown import Shown, text
from moe_lab.config.arguments import wrong
from moe_lab.results.measured import interval, number
from moe_lab.runs.compare import compared

if TYPE_CHECKING:
    import pandas as pd

    from moe_lab.results.comparisons.comparison import Comparison

COLUMNS = [
    *("other", "task", "metric", "examples", "a", "b", "difference", "difference_low", "difference_high"),
    *("test", "p", "p_holm", "to_right", "to_wrong", "verdict"),
]


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
        """One row per evaluation, task and metric.

        Columns: `other` ("b", or "b1", "b2", ...), `task`, `metric`, `examples`, the scores `a` and `b` (rates are
        fractions), `difference` (`b` minus `a`) with its 95% interval `difference_low`, `difference_high`, `p` of
        `test`, `p_holm` (corrected for all rows), `to_right`, `to_wrong` (examples that only the other one, or only
        `a`, has right), and `verdict`.
        """
        import pandas as pd

        frame = pd.DataFrame(self._comparison.rows).rename(columns={"n": "examples"})
        bounds = [row["ci95"] or (None, None) for row in self._comparison.rows]
        frame["difference_low"], frame["difference_high"] = zip(*bounds, strict=True)
        return frame[COLUMNS].astype(dict.fromkeys(("examples", "to_right", "to_wrong"), "Int64"))

    def _shown(self) -> tuple[dict[str, list[str]], list[str]]:
        rows = self.frame().to_dict("records")
        names = ("other", "task", "metric", "examples")
        columns = {name: [text(row[name]) for row in rows] for name in names}
        columns |= {name: [number(row[name]) for row in rows] for name in ("a", "b")}
        columns["difference"] = [number(row["difference"], sign=True) for row in rows]
        limits = [(row["difference_low"], row["difference_high"]) for row in rows]
        columns["95% interval"] = [interval(bounds, sign=True) for bounds in limits]
        columns["p (Holm)" if len(rows) > 1 else "p"] = [number(row["p_holm"]) for row in rows]
        columns["verdict"] = [row["verdict"] for row in rows]
        named = [f"{one.key}: {one.label} {one.settings}".rstrip() for one in self._comparison.evaluations]
        return columns, [*named, *self.notes]


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
