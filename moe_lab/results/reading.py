"""Reads stored runs: by file, by folder, by id."""

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from moe_lab.results.lm_eval_results import LmEvalResults
from moe_lab.results.model import RunResult
from moe_lab.results.stored_files import AGAIN, DamagedError, damaged, parsed_once


def stored_results(
    content: Mapping[str, Any], file: Path, advice: str = AGAIN
) -> RunResult | LmEvalResults:
    """The results in a file; a RunResult, if this package wrote them. Raises DamagedError for any
    other content."""
    try:
        if "moe_lab" in content:
            return RunResult(content, file.parent)
        return LmEvalResults.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = first["loc"]
        if "moe_lab" in content and place[0] == "lm_eval":
            place = place[1:]
        elif "moe_lab" in content:
            place = ("moe_lab", *place)
        reason = f"{'.'.join(map(str, place))}: {first['msg']}"
        raise damaged(file, reason, advice) from error


def read_run(folder: Path) -> RunResult | None:
    """The run that is stored in a folder; None without a results.json of this package. Raises
    DamagedError."""
    file = folder / "results.json"
    content = parsed_once(file)
    if content is None:
        return None
    results = stored_results(content, file)
    return results if isinstance(results, RunResult) else None


def find_run(runs: Path, run_id: str) -> RunResult | None:
    """The run with this id in `outputs/runs`, whose folders end in the first 8 characters of their
    ids."""
    for folder in sorted(runs.glob(f"*-{glob.escape(run_id[:8])}")):
        try:
            result = read_run(folder)
        except DamagedError:
            continue  # the run's own command says so
        if result is not None and result.run_id == run_id:
            return result
    return None
