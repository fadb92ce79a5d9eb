"""One evaluation in two processes of one thread each, against one process of one thread, loading
excluded.

    python -m benchmarks.processes

The whole command on the benchmark's model, alone and started by torchrun, in turns; the time is
`wall_seconds` of results.json. It needs two idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.bench_model import make_model, make_tokenizer

PROMISED = 1.7
CASES = {
    "base, toy_text": ["method=base", "task=toy_text", "limit=24"],
    "roe n=8, toy_text": ["method=roe", "method.n=8", "task=toy_text", "limit=12"],
    "base, toy_math, 32 new tokens": ["method=base", "task=toy_math", "limit=64"],
    "roe n=8, toy_math, 32 new tokens": ["method=roe", "method.n=8", "task=toy_math", "limit=32"],
}


def seconds(case: list[str], model: Path, processes: int) -> float:
    """Seconds that the command takes for answering."""
    command = [sys.executable]
    if processes > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone"]
        command += [*launcher, f"--nproc-per-node={processes}"]
    command += ["-m", "moe_lab", *case]
    if "task=toy_math" in case:
        command.append("gen_kwargs=max_gen_toks=32")
    with tempfile.TemporaryDirectory() as output:
        overrides = [f"model.path={model}", "device=cpu", "baseline=false", f"output_dir={output}"]
        subprocess.run(
            [*command, *overrides],
            check=True,
            capture_output=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        (results,) = Path(output).glob("runs/*/results.json")
        return float(json.loads(results.read_text())["moe_lab"]["cost"]["wall_seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of a case's title")
    options = parser.parse_args()
    print(
        f"| command | one process | two | times faster | promised: {PROMISED} "
        "|\n|---|---:|---:|---:|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_model().save_pretrained(model)
        make_tokenizer([]).save_pretrained(model)
        for title, case in CASES.items():
            if options.only not in title:
                continue
            one_process = []
            two_processes = []
            for _ in range(options.rounds):
                one_process.append(seconds(case, model, 1))
                two_processes.append(seconds(case, model, 2))
            time_of_one = statistics.median(one_process)
            time_of_two = statistics.median(two_processes)
            speedup = time_of_one / time_of_two
            met = "yes" if speedup >= PROMISED else "no"
            times = f"{time_of_one:.1f} s | {time_of_two:.1f} s"
            print(f"| {title} | {times} | {speedup:.2f} | {met} |", flush=True)


if __name__ == "__main__":
    main()
