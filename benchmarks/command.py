"""How fast the command answers: whole processes, median of several.

python -m benchmarks.command --data-dir <folder with gsm8k/, arc_challenge/, piqa/>
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable

from benchmarks.measure import side_by_side

PROMISED = {
    "--help": 1.5,
    "mode=plan task=toy_math": 4,
    "mode=plan task=gsm8k": 4,
    "mode=plan task=arc_challenge": 4,
}
ANY_TASK = "mode=plan task=lm_eval task.name=piqa"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", help="local data as for data_dir= (default: the hub)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    promised = PROMISED | {ANY_TASK: 10}
    with tempfile.TemporaryDirectory() as folder:

        def candidate(command: str) -> Callable[[], object]:
            arguments = [*command.split(), f"output_dir={folder}"]
            if options.data_dir and "toy" not in command and command != "--help":
                arguments.append(f"data_dir={options.data_dir}")
            return lambda: subprocess.run(
                [sys.executable, "-m", "moe_lab", *arguments], check=True, capture_output=True
            )

        seconds = side_by_side(
            {command: candidate(command) for command in promised}, options.rounds
        )
    print("| command | seconds | promised |\n|---|---:|---:|")
    for command, value in seconds.items():
        print(f"| `python -m moe_lab {command}` | {value:.2f} | {promised[command]} |")


if __name__ == "__main__":
    main()
