"""Run the commands of the checkout in whose root this is started, and keep what they print and
leave.

FOLDER/<command>/command.json         command line, exit code, seconds, places in its texts
FOLDER/<command>/stdout.txt, stderr.txt
FOLDER/<command>/files/               its working folder, with inputs/ and outputs/
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.golden.commands import COMMANDS, Command
from benchmarks.golden.wandb_files import replace_by_json

ROOT = Path.cwd()
INPUTS = Path(__file__).parent / "inputs"
SHARED = ".shared"
"""The folder of a recording with what all commands share: a home and the models."""


def record(folder: Path, pattern: str) -> None:
    """Run the commands whose names match the pattern, and those whose outputs they start with."""
    names = chosen(pattern)
    folder = folder.resolve()
    shared = folder / SHARED
    shutil.rmtree(shared, ignore_errors=True)
    (shared / "home").mkdir(parents=True)
    environment = clean_environment(shared / "home")
    check_package(environment)
    shutil.copytree(INPUTS, shared / "inputs", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(
        [sys.executable, "-m", "benchmarks.golden.models", str(shared / "inputs" / "models")],
        env=environment,
        capture_output=True,
        check=True,
    )

    total = 0.0
    for number, name in enumerate(names, 1):
        seconds = record_command(folder, name, COMMANDS[name], environment)
        total += seconds
        print(f"[{number}/{len(names)}] {name}: {seconds:.1f} s", flush=True)
    print(f"{len(names)} commands in {total:.0f} s: {folder}")


def chosen(pattern: str) -> list[str]:
    """The names that match, after the commands that they follow, in the order of the table."""
    wanted_names = set(fnmatch.filter(COMMANDS, pattern))
    if not wanted_names:
        raise SystemExit(
            f"--only {pattern}: no command has such a name. They are: {', '.join(COMMANDS)}."
        )
    wanted_names |= {COMMANDS[name].after for name in wanted_names}
    return [name for name in COMMANDS if name in wanted_names]


def clean_environment(home: Path) -> dict[str, str]:
    """Nothing of the user's settings, no network, no GPU, one thread, and always the same width of
    the terminal."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "250",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "WANDB_MODE": "offline",
    }


def check_package(environment: dict[str, str]) -> None:
    """An installed moe_lab must not stand in for that of the checkout."""
    code = "import moe_lab; print(moe_lab.__file__)"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=environment["HOME"],
        capture_output=True,
        text=True,
    )
    if ended.returncode != 0:
        raise SystemExit(f"moe_lab cannot be imported from {ROOT}: {ended.stderr}")
    package = Path(ended.stdout.strip())
    if not package.is_relative_to(ROOT):
        raise SystemExit(
            f"{package} is not in {ROOT}. Start this in the root of the checkout that is recorded."
        )


def record_command(folder: Path, name: str, command: Command, environment: dict[str, str]) -> float:
    """Run the command and write its recording. Returns its seconds."""
    place = folder / name
    files = place / "files"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if command.after:
        shutil.copytree(folder / command.after / "files", files)
    else:
        shutil.copytree(folder / SHARED / "inputs", files / "inputs")

    arguments = [with_path(argument, files) for argument in command.arguments]
    start = time.monotonic()
    with (place / "stdout.txt").open("w") as stdout, (place / "stderr.txt").open("w") as stderr:
        ended = subprocess.run(
            [sys.executable, "-m", "moe_lab", *arguments],
            cwd=files,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
    seconds = time.monotonic() - start
    replace_by_json(files / "outputs" / "wandb", environment)
    log = {
        "line": command.line,
        "exit_code": ended.returncode,
        "seconds": round(seconds, 1),
        "places": {
            "<files>": str(files),
            "<home>": environment["HOME"],
            "<checkout>": str(ROOT),
            "<python>": sys.prefix,
        },
    }
    (place / "command.json").write_text(json.dumps(log, indent=1) + "\n")
    return seconds


def with_path(argument: str, folder: Path) -> str:
    """The argument, in which the path that matches its pattern stands for the pattern."""
    key, _, pattern = argument.partition("=")
    if "*" not in pattern:
        return argument
    [path] = folder.glob(pattern)
    return f"{key}={path.relative_to(folder)}"
