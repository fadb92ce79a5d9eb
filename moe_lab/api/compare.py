"""Stored evaluations compared, example by example."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.api.shown import Shown, text
from moe_lab.config.arguments import wrong
from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError
from moe_lab.results.measured import interval, number

if TYPE_CHECKING:
    import pandas as pd

    from moe_lab.results.comparisons.comparison import Comparison

COLUMNS = [
    *("other", "task", "metric", "examples", "a", "b", "difference", "difference_low", "difference_high"),
    *("test", "p", "p_holm", "to_right", "to_wrong", "verdict"),
]


KEYS = ("mode", "a", "b", "output_dir")
"""The keys that mode=compare reads."""


class Compared(Shown):
    """Evaluations of the same examples, each compared with the first one.

    `file` is comparison.json, which also has the prompts and answers of all changed examples, and `page` its HTML page.
    `notes` says what is left out and what else differs, a sentence each.
    """

    exit_code = 0

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

    def print(self) -> None:
        """Print the table, and the paths of the page and the file, as the command does."""
        from moe_lab.reports.terminal.comparison import print_comparison

        print_comparison(self._comparison)
        print(self.page)
        print(self.file)

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
    return _compared([Path(first), *map(Path, others)], Path(output_dir))


def compare_stored(configs: Sequence[Config]) -> Compared:
    """`compare` for mode=compare of the command. Raises ConfigError for a grid, and for keys that it does not read."""
    if len(configs) > 1:
        raise ConfigError("mode=compare takes no grid. Leave out -m; b= takes several, separated by commas.")
    [config] = configs
    for override in config.overrides:
        if override.partition("=")[0].lstrip("+") not in KEYS:
            raise ConfigError(f"mode=compare reads stored results; {override} changes nothing. Leave it out.")
    assert config.a is not None and config.b is not None
    others = [path.strip() for path in config.b.split(",")]
    return _compared([Path(config.a), *map(Path, others)], Path(config.output_dir))


def _compared(places: Sequence[Path], output_dir: Path) -> Compared:
    """The files are in `comparisons/<names>-<id>/`. The id is the SHA-256 of the sample logs, so that the same command
    writes the same files."""
    from moe_lab.reports.pages.comparison_page import write_comparison_page
    from moe_lab.results.atomic import json_text, write_file
    from moe_lab.results.comparisons.comparison import compare
    from moe_lab.results.comparisons.evaluation import read_evaluation
    from moe_lab.results.identity import folder_name, task_label

    keys = ["a", "b"] if len(places) == 2 else ["a", *(f"b{number}" for number in range(1, len(places)))]
    paths = {key: path.expanduser() for key, path in zip(keys, places, strict=True)}
    if len({path.resolve() for path in paths.values()}) < len(paths):
        raise ConfigError("a= and b= name the same result twice. Give different ones.")
    comparison = compare([read_evaluation(key, path) for key, path in paths.items()])
    digest = hashlib.sha256()
    for evaluation in comparison.evaluations:
        for log in evaluation.samples_files.values():
            digest.update(hashlib.sha256(log.read_bytes()).digest())
    labels = task_label([evaluation.label for evaluation in comparison.evaluations])
    folder = output_dir / "comparisons" / folder_name(labels, digest=digest.hexdigest())
    file = write_file(folder / "comparison.json", json_text(comparison))
    return Compared(comparison, file, write_comparison_page(comparison, file.with_suffix(".html")))
