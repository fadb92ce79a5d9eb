"""Show that a refactoring changed nothing: some 55 commands, recorded before and after it, and
compared.

    python -m benchmarks.golden record FOLDER                       # 7 minutes with one process
    python -m benchmarks.golden record FOLDER --only 'roe*'         # the commands with such names
    python -m benchmarks.golden compare BEFORE AFTER                # what differs, by command
    python -m benchmarks.golden compare BEFORE AFTER --rtol 1e-9    # recordings of two machines

`record` runs in the root of a checkout; several of them may write to one folder. `compare` exits
with 0 if nothing differs.

The commands are in commands.py. What differs between any two recordings of the same commit, such as
times and the process id, is not compared: varying.py lists it. Numbers must be equal to the last
bit, so record both on the same machine with the same libraries, and record one commit twice before
you trust a difference. A checkout without this folder can be recorded after it is copied there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.golden",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True)
    recording = actions.add_parser(
        "record", help="run the commands and keep what they print and leave"
    )
    recording.add_argument("folder", type=Path)
    comparing = actions.add_parser("compare", help="say what differs")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument(
        "--rtol", type=float, default=0.0, help="relative tolerance of numbers (default: 0)"
    )
    for action in (recording, comparing):
        action.add_argument(
            "--only", metavar="PATTERN", default="*", help="names of commands, as 'roe*'"
        )
    options = parser.parse_args()

    if options.action == "record":
        from benchmarks.golden.record import record

        record(options.folder, options.only)
        return 0

    from benchmarks.golden.compare import compare

    return compare(options.before, options.after, options.only, options.rtol)


if __name__ == "__main__":
    sys.exit(main())
