"""The names and titles of the files of an experiment's table."""

import hashlib
import re
from collections.abc import Sequence

from moe_lab.reports.papers.experiment import Experiment
from moe_lab.results.identity import RUNTIME
from moe_lab.results.names import folder_name

SAME_TABLE = RUNTIME - {"baseline", "metrics", "seeds", "tuning"} | {"data_dir"}
"""Keys that change neither the numbers nor the contents of a table. Results of local files and of
the hub share one."""
SAME_NUMBERS = ("model.attn_implementation", "model.device_map", "model.experts_implementation")
LONGEST = 60
"""Most characters of the typed overrides in a file's name."""


def typed_settings(overrides: Sequence[str]) -> list[str]:
    """The typed overrides that change a table, sorted, each once."""
    settings = {override.lstrip("+") for override in overrides}
    return sorted(setting for setting in settings if _changes_table(setting))


def _changes_table(override: str) -> bool:
    """Whether an override changes the numbers or the contents of a table."""
    key = override.partition("=")[0].partition("@")[0]
    first_part = re.split(r"[./]", key)[0]
    if first_part in SAME_TABLE or first_part == "hydra":
        return False
    return key not in SAME_NUMBERS


def file_stem(experiment: Experiment, scale: str) -> str:
    """The name of an experiment's files.

    It is `<folder>-<name>-<scale>`, then the typed overrides and a hash of them.
    """
    plain = f"{experiment.name.replace('/', '-')}-{scale}"
    if not experiment.typed:
        return plain
    digest = hashlib.sha256("\n".join(experiment.typed).encode()).hexdigest()
    return folder_name(plain, "-".join(experiment.typed)[:LONGEST], digest=digest)


def title(experiment: Experiment, scale: str) -> str:
    """The title of a table: the experiment's title, the scale, and the typed overrides."""
    details = [f"scale {scale}", *experiment.typed]
    return f"{experiment.title} ({', '.join(details)})"
