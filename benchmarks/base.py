"""`method=base` against lm-eval's own `hf` model: the same requests, one process, side by side.

    python -m benchmarks.base --data-dir <folder with arc_challenge/, mmlu/, gsm8k/>
    python -m benchmarks.base --data-dir <folder> --full-size

`--full-size` takes OLMoE-1B-7B's shape on a GPU, with random bfloat16 weights.
`hf` counts at the better of batch sizes 1 and 16, on a GPU 16 and 64. Without --data-dir the tasks
come from the hub.
"""

from __future__ import annotations

import argparse
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM

from benchmarks.bench_model import make_model, make_tokenizer
from benchmarks.measure import side_by_side
from benchmarks.roe_gpu import OLMOE_1B_7B, random_model
from moe_lab.config.schema import Config, TaskConfig
from moe_lab.engine.lm import EngineLM
from moe_lab.methods import get_method
from moe_lab.tasks.documents import select_documents
from moe_lab.tasks.loading import load_tasks


@dataclass(frozen=True)
class Case:
    """A task as users run it, and the ratio that is promised."""

    title: str
    task: TaskConfig
    shots: int
    documents: int
    promised: float
    gen_kwargs: dict[str, Any] | None = None


def arc() -> TaskConfig:
    return TaskConfig(name="arc_challenge", metric="acc_norm,none", data_folder="arc_challenge")


def cases() -> list[Case]:
    subject = "high_school_statistics"
    mmlu = TaskConfig(name=f"mmlu_{subject}", data_folder="mmlu", data_filter="subject")
    gsm8k = TaskConfig(name="gsm8k", data_folder="gsm8k")
    return [
        Case("ARC-Challenge, 25-shot", arc(), 25, 4, 3.0),
        Case("ARC-Challenge, zero-shot", arc(), 0, 64, 1.5),
        Case("MMLU, one subject, 5-shot", mmlu, 5, 32, 3.0),
        Case(
            "GSM8K, 5-shot, 64 new tokens",
            gsm8k,
            5,
            16,
            1.0,
            {"max_gen_toks": 64, "until": ["<never>"]},
        ),
    ]


def requests_of(case: Case, data_dir: str | None) -> list[Any]:
    """lm-eval's requests for some documents of the task."""
    config = Config(
        method=get_method("base").Config(name="base"),
        task=case.task,
        num_fewshot=case.shots,
        limit=case.documents,
        gen_kwargs=case.gen_kwargs,
        data_dir=data_dir,
    )
    tasks = load_tasks(config)
    samples = select_documents(config, tasks)
    requests: list[Any] = []
    for name, task in tasks["tasks"].items():
        task.build_all_requests(samples=samples[name])
        requests += task.instances
    return requests


def run(
    case: Case,
    model: Any,
    tokenizer: Any,
    data_dir: str | None,
    rounds: int,
    sizes: tuple[int, ...],
) -> list[float]:
    """Median seconds of `hf` with each batch size, and of this engine."""
    requests = requests_of(case, data_dir)
    kind = requests[0].request_type
    lms: list[Any] = [
        HFLM(pretrained=model, tokenizer=tokenizer, batch_size=size) for size in sizes
    ]
    lms.append(EngineLM(model, tokenizer))

    def candidate(lm: Any) -> Any:
        return lambda: getattr(lm, kind)(requests, disable_tqdm=True)

    return list(side_by_side({str(i): candidate(lm) for i, lm in enumerate(lms)}, rounds).values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", help="local data as for data_dir= (default: the hub)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of a case's title")
    parser.add_argument("--full-size", action="store_true", help="needs a GPU with 60 GB")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.disable(logging.WARNING)
    os.environ["TQDM_DISABLE"] = "1"
    texts = sorted(Path(options.data_dir or "").glob("*/train.jsonl"))[:6]
    tokenizer = make_tokenizer(texts)
    model: Any = (
        random_model(OLMOE_1B_7B, torch.device("cuda")) if options.full_size else make_model()
    )
    sizes, larger_count = ((16, 64), 8) if options.full_size else ((1, 16), 1)
    print(
        f"| task | {' | '.join(f'hf, batch size {size}' for size in sizes)} | moe_lab | times "
        "faster | promised |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    for case in cases():
        if options.only not in case.title:
            continue
        case = replace(case, documents=case.documents * larger_count)
        seconds = run(case, model, tokenizer, options.data_dir, options.rounds, sizes)
        cells = " | ".join(f"{value:.2f} s" for value in seconds)
        print(
            f"| {case.title} ({case.documents} documents) | {cells} | "
            f"{min(seconds[:-1]) / seconds[-1]:.2f} | {case.promised} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
