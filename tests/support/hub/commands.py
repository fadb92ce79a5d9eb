"""Commands in processes of their own, with the loopback hub."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.hub.server import Hub

ROOT = Path(__file__).resolve().parents[3]


def new_command() -> None:
    """What a new process would not know any more."""
    from moe_lab.models import hub

    hub._requested.cache_clear()
    hub.fetch.cache_clear()


@dataclass(frozen=True)
class Commands:
    """Runs the command in new processes, with one cache and one output folder."""

    hub: Hub
    folder: Path

    def run(self, *overrides: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {
            "HF_ENDPOINT": self.hub.url,
            "HF_HOME": str(self.folder / "hf"),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "0",
            "HF_DATASETS_OFFLINE": "0",
        }
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("HF_")
        }
        return subprocess.run(
            [sys.executable, "-m", "moe_lab", *overrides, f"output_dir={self.folder / 'outputs'}"],
            env=inherited | variables | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
