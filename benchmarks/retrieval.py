"""Finding C3PO's neighbours among 10,000 references, per question.

python -m benchmarks.retrieval
"""

from __future__ import annotations

import argparse
from functools import partial

import torch

from benchmarks.measure import side_by_side
from moe_lab.methods.references.neighbours import neighbours

REFERENCES = 10_000
QUESTIONS = 64
SIZES = (384, 1024, 4096)
"""Of all-MiniLM-L6-v2, of small models' hidden states, and of NV-Embed-v2 and large models' hidden
states."""


def unit_vectors(count: int, size: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(count, size), dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"{options.threads} threads, {REFERENCES:,} references")
    print(
        "| size of an embedding | k=3, 64 questions at once, ms | k=3, one at a time, ms | ball, "
        "64 at once, ms |"
    )
    print("|---:|---:|---:|---:|")
    for size in SIZES:
        references = unit_vectors(REFERENCES, size)
        questions = unit_vectors(QUESTIONS, size)
        median = (
            neighbours(questions, references, k=100, epsilon=None)
            .distance_QK[:, -1]
            .median()
            .item()
        )
        times = side_by_side(
            {
                "batch": partial(neighbours, questions, references, k=3, epsilon=None),
                "one": partial(neighbours, questions[:1], references, k=3, epsilon=None),
                "ball": partial(neighbours, questions, references, k=3, epsilon=median),
            },
            options.rounds,
        )
        seconds_each = [times["batch"] / QUESTIONS, times["one"], times["ball"] / QUESTIONS]
        print(
            f"| {size} | " + " | ".join(f"{1e3 * seconds:.2f}" for seconds in seconds_each) + " |",
            flush=True,
        )


if __name__ == "__main__":
    main()
