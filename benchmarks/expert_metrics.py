"""What Load Balance and Collaboration cost on top of the evaluation they ride on, side by side in
one process.

    python -m benchmarks.expert_metrics

The evaluation is lm-eval's whole one: requests, answers, scores. Keeping routes and counting them
come on top of it.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext

import torch

from benchmarks.measure import side_by_side
from moe_lab.config.compose import compose
from moe_lab.config.schema import Config
from moe_lab.engine.forward.forward import observed
from moe_lab.engine.lm import EngineLM
from moe_lab.metrics.counts import SelectedExperts, count, documents_of
from moe_lab.models.load import load_model
from moe_lab.runs.config import to_config
from moe_lab.runs.evaluation.expert import entropies
from moe_lab.runs.evaluation.run_lm_eval import evaluate_tasks
from moe_lab.tasks.documents import select_documents
from moe_lab.tasks.loading import load_tasks


def config_of(task: str, limit: int) -> Config:
    return to_config(compose(["method=base", "model=tiny", f"task={task}", f"limit={limit}"])[0])


def compare(task: str, limit: int, rounds: int) -> tuple[float, float]:
    """(seconds of the evaluation, seconds with both metrics)."""
    config = config_of(task, limit)
    tasks = load_tasks(config)
    samples = select_documents(config, tasks, frozenset())
    loaded = load_model(config.model, dtype=config.dtype, device=config.device, offline=True)

    def evaluate(counted: bool) -> None:
        lm = EngineLM(loaded.model, loaded.tokenizer, progress=False)
        routes = SelectedExperts()
        with observed(lm, routes) if counted else nullcontext():
            evaluate_tasks(config, tasks, lm, dict(samples))
        if counted:
            entropies(count(routes, documents_of(tasks)[0]))

    seconds = side_by_side(
        {"plain": lambda: evaluate(False), "counted": lambda: evaluate(True)}, rounds
    )
    return seconds["plain"], seconds["counted"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        "| evaluation | seconds | with Load Balance and Collaboration | ratio, promised 1.15 "
        "|\n|---|---:|---:|---:|"
    )
    for task, limit in (("toy_choice", 500), ("toy_math", 100)):
        plain, counted = compare(task, limit, options.rounds)
        print(
            f"| {task}, {limit} documents | {plain:.2f} | {counted:.2f} | {counted / plain:.2f} |"
        )


if __name__ == "__main__":
    main()
