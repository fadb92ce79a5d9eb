"""`mode=plan pilot=8`: a few documents of each planned model, method and task, answered for their speed alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import MoeLabError, first_line
from moe_lab.methods.method import Context, TrainingMethod
from moe_lab.runs.jobs import Job, distinct_runs
from moe_lab.runs.plan import run_after, with_baselines
from moe_lab.runs.speeds import PILOTS, Speed, label_of, measured_speed, store_pilot

if TYPE_CHECKING:
    from moe_lab.models.memory import ModelPool
    from moe_lab.runs.run import Run

REFERENCES = 64
"""Documents of each reference set of a pilot. The speed after that does not depend on the size of a set."""


def run_pilots(jobs: Sequence[Job], count: int) -> None:
    """Answer `count` documents for each model, method and task of some jobs that has no measured speed, and store it.

    The answers are dropped, and nothing is graded. A speed is a file in `<output_dir>/pilots/`, which no view of
    results reads. What a method makes before it answers (references, an adapter) is made there, too. Models that are
    yet to be trained are left out.
    """
    from moe_lab.models.memory import ModelPool

    models, tried = ModelPool(), set()
    tuned = [run_after(job) for job in jobs if not job.runs and not job.trainings]
    for run in with_baselines([*distinct_runs(jobs), *tuned]):
        label = label_of(run)
        if label in tried or _untrained(run) or measured_speed(output := Path(run.config.output_dir), *label):
            continue
        tried.add(label)
        print(f"Pilot: {count} documents, {', '.join(label)}", file=sys.stderr)
        try:
            store_pilot(output, *label, _speed(run, count, models))
        except MoeLabError as error:
            print(f"It has no speed: {first_line(error)}", file=sys.stderr)


def _untrained(run: Run) -> bool:
    return isinstance(run.method, TrainingMethod) and bool(run.method.training_left(run.config, run.facts))


def _speed(run: Run, count: int, models: ModelPool) -> Speed:
    from moe_lab.runs.evaluation.result_block import Meter
    from moe_lab.runs.evaluation.run_lm_eval import trained_config

    config, method = trained_config(run, models), run.method
    own = replace(config, output_dir=str(Path(config.output_dir) / PILOTS))
    if hasattr(method.config, "reference_size"):
        method = type(method)(replace(method.config, reference_size=REFERENCES))
    requests = _requests(run, count)
    model = models.get(config)
    with method.open(model, Context(config=own)) as lm:
        for kind, of_kind in requests.items():
            lm.answer(kind, of_kind[:1], _drop)  # the first pass of a process is slow
        meter = Meter(lm)
        for kind, of_kind in requests.items():
            lm.answer(kind, of_kind, _drop)
        spent = meter.spent()
    return Speed(spent["tokens_in"] / spent["wall_seconds"], str(model.device))


def _drop(index: int, answer: Any) -> None:
    pass


def _requests(run: Run, count: int) -> dict[str, list[Any]]:
    """The requests of `count` documents, spread over all documents of all tasks, by kind."""
    from moe_lab.engine.hf import Request
    from moe_lab.models.tokenizer import Framing, prompt_tokenizer
    from moe_lab.tasks.requests import build_requests

    config = run.config
    framing = Framing(lambda: prompt_tokenizer(config), config.apply_chat_template)
    documents = [(name, number) for name, numbers in run.samples.items() for number in numbers]
    chosen = documents[:: max(1, len(documents) // count)][:count]
    requests: dict[str, list[Any]] = {}
    for name in dict.fromkeys(name for name, _ in chosen):
        numbers = [number for of, number in chosen if of == name]
        for instances in build_requests(config, run.tasks["tasks"][name], framing, numbers):
            for each in instances:
                answers = [Request(each.args, repeat) for repeat in range(each.repeats or 1)]
                requests.setdefault(each.request_type, []).extend(answers)
    return requests
