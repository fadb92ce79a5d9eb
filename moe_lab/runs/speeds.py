"""The measured speed of stored runs, and of the pilots of `mode=plan pilot=8`, which answer a few documents for it."""

from __future__ import annotations

import glob
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from moe_lab.errors import MoeLabError, first_line
from moe_lab.methods.method import Context, TrainingMethod
from moe_lab.results.atomic import write_file
from moe_lab.results.identity import folder_name, task_label
from moe_lab.results.model import read_run
from moe_lab.results.stored_files import DamagedError, whole_mapping
from moe_lab.runs.jobs import Job, distinct_runs, run_after, with_baselines

if TYPE_CHECKING:
    from moe_lab.models.memory import ModelPool
    from moe_lab.runs.run import Run

PILOTS = "pilots"
"""The folder of pilots in the output folder."""


class Speed(NamedTuple):
    """Forward tokens per second, without loading, and the device."""

    tokens_per_second: float
    device: str


def label_of(run: Run) -> tuple[str, str, str]:
    """The model, method and task whose speed a run has."""
    return run.facts.name, run.config.method.name, task_label(run.config.task.name)


def measured_speed(output: Path, *label: str) -> Speed | None:
    """The speed of the newest stored run of a model, a method and a task, with whatever settings and examples.

    Without such a run that of its pilot; None without a pilot, too.
    """
    pattern = f"{glob.escape(folder_name(*label, digest=''))}*/results.json"
    files = [file for file in (output / "runs").glob(pattern) if file.exists()]
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True):
        with suppress(DamagedError):  # the run's own command says so
            run = read_run(file.parent)
            if run is not None and (speed := run.cost.get("tokens_per_second")):
                return Speed(speed, run.cost.get("device") or "another device")
    pilot = whole_mapping(_pilot(output, *label))
    return None if pilot is None else Speed(**pilot)


def _pilot(output: Path, *label: str) -> Path:
    return output / PILOTS / f"{folder_name(*label, digest='speed')}.json"


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
        label, output = label_of(run), Path(run.config.output_dir)
        untrained = isinstance(run.method, TrainingMethod) and run.method.training_left(run.config, run.facts)
        if label in tried or untrained or measured_speed(output, *label):
            continue
        tried.add(label)
        print(f"Pilot: {count} documents, {', '.join(label)}", file=sys.stderr)
        try:
            write_file(_pilot(output, *label), json.dumps(_speed(run, count, models)._asdict()))
        except MoeLabError as error:
            print(f"It has no speed: {first_line(error)}", file=sys.stderr)


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
            lm.answer(kind, of_kind[:1], lambda index, answer: None)  # the first pass of a process is slow
        meter = Meter(lm)
        for kind, of_kind in requests.items():
            lm.answer(kind, of_kind, lambda index, answer: None)
        spent = meter.spent()
    return Speed(spent["tokens_in"] / spent["wall_seconds"], str(model.device))


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
