"""`mode=compare`: stored evaluations of the same documents, each compared with the first."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError

if TYPE_CHECKING:
    from moe_lab.results.comparisons.comparison import Comparison

KEYS = ("mode", "a", "b", "output_dir")
"""The keys that mode=compare reads."""


def compare_results(configs: Sequence[Config]) -> int:
    """Compare `a` with each of `b`, print the table, and write comparison.json and its page. Returns the exit code.

    Raises ConfigError for other keys, and if the results cannot be compared.
    """
    from moe_lab.reports.terminal import print_comparison

    if len(configs) > 1:
        raise ConfigError("mode=compare takes no grid. Leave out -m; b= takes several, separated by commas.")
    [config] = configs
    for override in config.overrides:
        if override.partition("=")[0].lstrip("+") not in KEYS:
            raise ConfigError(f"mode=compare reads stored results; {override} changes nothing. Leave it out.")
    assert config.a is not None and config.b is not None
    others = [Path(path.strip()) for path in config.b.split(",")]
    comparison, file, page = compared(Path(config.a), others, Path(config.output_dir))
    print_comparison(comparison)
    print(page)
    print(file)
    return 0


def compared(first: Path, others: Sequence[Path], output_dir: Path) -> tuple[Comparison, Path, Path]:
    """Compare each of `others` with the first. Returns the comparison and the paths of comparison.json and its page.

    They are in `comparisons/<names>-<id>/`. The id is the SHA-256 of the sample logs, so that the same command writes
    the same files. Raises ConfigError if the results cannot be compared, and ResultsError.
    """
    from moe_lab.reports.pages.comparison_page import write_comparison_page
    from moe_lab.results.atomic import json_text, write_file
    from moe_lab.results.comparisons.comparison import compare
    from moe_lab.results.comparisons.evaluation import read_evaluation
    from moe_lab.results.identity import folder_name, task_label

    keys = ["b"] if len(others) == 1 else [f"b{number}" for number in range(1, len(others) + 1)]
    paths = {key: path.expanduser() for key, path in zip(["a", *keys], [first, *others], strict=True)}
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
    return comparison, file, write_comparison_page(comparison, file.with_suffix(".html"))
