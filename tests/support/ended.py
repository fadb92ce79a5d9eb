"""What a command wrote: its results and the stored answers of its runs."""

import json
from pathlib import Path
from typing import Any

from tests.support.command import Ended


def block_of(ended: Ended) -> dict[str, Any]:
    """The `moe_lab` part of the results.json that the command names last."""
    assert ended.code == 0, ended.err
    block: dict[str, Any] = json.loads(Path(ended.out.splitlines()[-1]).read_text())["moe_lab"]
    return block


def samples_of(folder: Path, method: str = "*", run_id: str = "") -> list[dict[str, Any]]:
    """The stored samples of the output folder's only run of this method and id."""
    [samples] = folder.glob(f"runs/*-{method}-*{run_id[:8]}/samples_*.jsonl")
    return [json.loads(line) for line in samples.read_text().splitlines()]


def answers(folder: Path, method: str = "*", run_id: str = "") -> list[Any]:
    """The responses of `samples_of`."""
    return [sample["resps"] for sample in samples_of(folder, method, run_id)]
