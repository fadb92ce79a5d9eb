"""A grid of eight equal runs made by two workers of one thread each, against one process of one
thread.

    python -m benchmarks.workers

Whole commands on the benchmark's model, in turns, imports and loading included: each worker has its
own. It needs two idle cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bench_model import make_model, make_tokenizer

PROMISED = 1.7
RUNS = 8


def seconds(model: Path, documents: int, workers: int) -> float:
    """Seconds of the whole command."""
    with tempfile.TemporaryDirectory() as output:
        overrides = [
            "method=roe",
            "method.n=8",
            "task=toy_text",
            f"seed={','.join(str(seed) for seed in range(RUNS))}",
            f"limit={documents}",
            f"model.path={model}",
            "device=cpu",
            "baseline=false",
            f"output_dir={output}",
        ]
        if workers > 1:
            overrides += ["launcher=local", f"launcher.workers={workers}"]
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "moe_lab", "-m", *overrides],
            check=True,
            capture_output=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        duration = time.perf_counter() - start
        assert len(list(Path(output).glob("runs/*/results.json"))) == RUNS
    return duration


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--documents", type=int, default=32)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_model().save_pretrained(model)
        make_tokenizer([]).save_pretrained(model)
        times_of_one = []
        times_of_two = []
        for _ in range(options.rounds):
            times_of_one.append(seconds(model, options.documents, workers=1))
            times_of_two.append(seconds(model, options.documents, workers=2))
    of_one = statistics.median(times_of_one)
    of_two = statistics.median(times_of_two)
    faster = of_one / of_two
    met = "yes" if faster >= PROMISED else "no"
    print(f"| {RUNS} runs | one process | two workers | times faster | promised: {PROMISED} |")
    print("|---|---:|---:|---:|---|")
    name = f"RoE n=8, {options.documents} texts"
    print(f"| {name} | {of_one:.0f} s | {of_two:.0f} s | {faster:.2f} | {met} |")


if __name__ == "__main__":
    main()
