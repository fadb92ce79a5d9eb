"""Attack the command on the embedded model, and print what broke.

    python -m benchmarks.faults                  a short form
    python -m benchmarks.faults --full           the figures of docs/reliability.md
    python -m benchmarks.faults --only damaged:17

Exits with 1 where a number was lost or wrong, a traceback was printed, or a file was left.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.faults.warm import warm

FULL = {"kills": 100, "damaged": 500, "lines": 1000}
SHORT = {"kills": 4, "damaged": 10, "lines": 25}
PARTS = tuple(FULL)
MEMORY = "/dev/shm"
"""Where runs are attacked, if it is there: no attack waits for a disk."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TQDM_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
"""What keeps this process free of threads, so that it can be forked."""


def main() -> int:
    options = _options()
    os.environ.update(ENVIRONMENT)
    work = Path(
        tempfile.mkdtemp(prefix="faults-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None)
    )
    try:
        with warm():
            return _attack(options, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _attack(options: argparse.Namespace, work: Path) -> int:
    violations: list[tuple[str, str]] = []
    for part in _parts(options, work):
        start = time.monotonic()
        before = len(violations)
        numbers = (
            range(part.attempts) if options.only is None else [int(options.only.partition(":")[2])]
        )
        for number in numbers:
            for problem in part.attempt(number):
                violations.append((f"{part.name}:{number}", problem))
                print(f"{part.name}:{number}: {problem}", file=sys.stderr, flush=True)
        seconds = time.monotonic() - start
        print(
            f"| {part.name} | {part.told()} | {len(violations) - before} | {seconds:.0f} s |",
            flush=True,
        )
    for place, problem in violations:
        print(f"\n{problem}\n  {_command(options, place)}")
    return int(bool(violations))


def _parts(options: argparse.Namespace, work: Path) -> Any:
    """The parts of the attack that are asked for, each made when the one before it has ended."""
    import torch

    from benchmarks.faults.damage import Damage
    from benchmarks.faults.kills import Kills
    from benchmarks.faults.kinds import undisturbed
    from benchmarks.faults.lines import Lines
    from moe_lab.cli.main import main as command

    def quietly(argv: list[str]) -> int:
        log = work / "first.log"
        with (
            log.open("w") as file,
            contextlib.redirect_stdout(file),
            contextlib.redirect_stderr(file),
        ):
            return command(argv)

    torch.set_num_threads(1)
    start = time.monotonic()
    kinds = [undisturbed(name, work, quietly) for name in options.kinds]
    gc.collect()
    gc.freeze()  # children need not look through what this process holds
    print("| part | attempts | violations | time |\n|---|---|---:|---:|")
    print(
        f"| undisturbed | {len(kinds)} runs, each equal to the same one again | 0 | "
        f"{time.monotonic() - start:.0f} s |"
    )
    only = (options.only or "").partition(":")[0]
    made = {
        "kills": lambda: Kills(kinds, work, options.seed, options.kills),
        "damaged": lambda: Damage(kinds, work, options.seed, options.damaged),
        "lines": lambda: Lines(work, options.seed, options.lines),
    }
    for name in PARTS:
        if getattr(options, name) and only in ("", name):
            yield made[name]()


def _command(options: argparse.Namespace, place: str) -> str:
    counts = " ".join(f"--{name} {getattr(options, name)}" for name in PARTS)
    kinds = " ".join(options.kinds)
    return (
        f"python -m benchmarks.faults --seed {options.seed} {counts} --kinds {kinds} --only {place}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ("roe", "tuning", "c3po", "finetune", "judged")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full", action="store_true", help="the counts of docs/reliability.md")
    parser.add_argument("--kills", type=int, help="kills with -9")
    parser.add_argument("--damaged", type=int, help="damaged files")
    parser.add_argument("--lines", type=int, help="wrong command lines")
    parser.add_argument(
        "--kinds", nargs="+", choices=names, default=list(names), help="runs that are attacked"
    )
    parser.add_argument(
        "--only", metavar="PART:NUMBER", help="one attempt, as a violation names it"
    )
    options = parser.parse_args()
    for name, count in (FULL if options.full else SHORT).items():
        if getattr(options, name) is None:
            setattr(options, name, count)
    return options


if __name__ == "__main__":
    sys.exit(main())
