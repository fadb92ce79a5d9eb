"""A run from its configuration to its result: prepare without weights, then execute.

`prepare` checks all that can be checked and gives the run its identity; `execute` returns the stored result, or
computes what is missing: the baseline first, then the unanswered requests, then lm-eval's metrics over all answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.checks import (
    check_chat_template,
    check_code_execution,
    check_generation,
    check_metric,
    check_metrics,
    check_router,
)
from moe_lab.config import Config
from moe_lab.errors import ConfigError, MoeLabError
from moe_lab.memory import memory_errors
from moe_lab.methods import get_method
from moe_lab.models.pool import ModelPool
from moe_lab.offline import go_offline
from moe_lab.results.estimate import estimate_forward_tokens
from moe_lab.results.expert_metrics import stored_metrics
from moe_lab.results.judged import waiting
from moe_lab.results.store import RunFolder, check_writable, version_marks

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.judges.judge import Judge
    from moe_lab.methods.method import Method
    from moe_lab.models.facts import ModelFacts


__all__ = ["ModelPool", "Outcome", "Run", "estimate_forward_tokens", "execute", "prepare"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run, checked and named, nothing computed."""

    config: Config
    run_id: str
    """SHA-256 of what determines its numbers (`moe_lab.results.identity`)."""
    folder: Path
    facts: ModelFacts
    method: Method
    tasks: TaskDict
    """lm-eval's tasks by name, with their documents."""
    samples: dict[str, list[int]]
    """Document numbers per task."""
    baseline: Run | None = None
    """The untouched model on the same documents, where one is wanted."""
    compared: dict[str, Run] = field(default_factory=dict)
    """What else it is compared with on the same documents, by name (`Method.compared_with`)."""
    judges: tuple[Judge, ...] = ()
    """Who judges its answers."""
    answers_id: str
    """The same SHA-256 without the judges: of what determines the answers."""

    @property
    def done(self) -> bool:
        """Whether its result is stored."""
        return self.stored() is not None

    @property
    def needed(self) -> dict[str, Run]:
        """The runs that come first: "baseline", and what else it is compared with."""
        return ({"baseline": self.baseline} if self.baseline is not None else {}) | self.compared

    @property
    def measured(self) -> bool:
        """Whether the metrics that are asked for are stored, and no answer waits for a judge."""
        measured = self.config.metrics == "none" or self.stored_metrics() is not None
        return measured and not (self.judges and waiting(self.stored()))

    @property
    def num_documents(self) -> int:
        return sum(len(numbers) for numbers in self.samples.values())

    @cached_property
    def partial(self) -> bool:
        """Whether a task has documents that the run leaves out."""
        return any(
            len(self.samples[name]) < len(task.task_docs) for name, task in self.tasks["tasks"].items()
        )

    @property
    def store(self) -> RunFolder:
        return RunFolder(self.folder, self.run_id)

    def stored(self) -> dict[str, Any] | None:
        """The content of its results.json, if complete and of this run and hub commit."""
        return self.store.stored(self.facts.commit)

    def stored_metrics(self) -> dict[str, Any] | None:
        """The content of its expert_metrics.json, if complete and of this run and hub commit."""
        return stored_metrics(self.folder, self.run_id, self.facts.commit)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run came to."""

    run: Run
    results: dict[str, Any]
    """The content of results.json."""
    stored: bool
    """Whether the result was there already."""
    path: Path
    """Of results.json."""
    marks: list[str] = field(default_factory=list)
    """What a reader has to know of a stored result: made with other versions."""


def prepare(config: Config) -> Run:
    """Check everything that can be checked without weights. Makes no folder.

    Raises ConfigError for impossible settings and an output folder that cannot be written, TaskError for tasks and
    data, ModelError for a model that is none, has no tokenizer, or has no router where the method needs one.
    """
    if config.offline:
        go_offline()
    check_writable(config.output_dir)
    method = get_method(config.method.name)(config.method)
    if method.trains:
        raise ConfigError(f"method={config.method.name} trains a model and evaluates none.")

    from moe_lab.models.facts import model_facts
    from moe_lab.models.tokenizer import load_tokenizer
    from moe_lab.tasks import load_tasks, select_documents

    tasks = load_tasks(config)
    check_metric(config, tasks)
    check_code_execution(config, tasks)
    samples = select_documents(config, tasks, method.tuned_on)
    facts = model_facts(config.model, dtype=config.dtype, device=config.device, offline=config.offline)
    check_router(method, facts)
    check_metrics(method, config, facts, tasks)
    load_tokenizer(config.model, offline=config.offline)
    method.check(facts)
    check_chat_template(config)
    check_generation(config, facts, tasks)
    run = _identified(config, method, facts, tasks, samples)
    if not config.baseline or config.method.name == "base" or config.predict_only:
        return run
    base = _baseline_config(config)
    baseline = _identified(base, get_method("base")(base.method), facts, tasks, samples)
    compared = {}
    for name, (other, typed) in method.compared_with().items():
        keys = {override.partition("=")[0] for override in typed}
        kept = [
            override for override in config.overrides if override.partition("=")[0].lstrip("+") not in keys
        ]
        own = replace(config, method=other, rerun=False, overrides=[*kept, *typed])
        found = _identified(own, get_method(other.name)(other), facts, tasks, samples)
        compared[name] = replace(found, baseline=baseline)
    return replace(run, baseline=baseline, compared=compared)


def execute(run: Run, models: ModelPool) -> Outcome:
    """Compute what is missing of a run and of those that it is compared with, or return what is stored.

    The same call after an interruption continues. With mode=report a stored result is returned as it is, also where
    a comparison or the metrics are missing. Raises RunHeldError where another process works on this
    run, and MoeLabError where memory does not suffice.
    """
    from moe_lab.evaluation import evaluate_run

    stored = None if run.config.rerun else _stored_outcome(run)
    if stored is not None:
        block = stored.results["moe_lab"]
        compared = (run.baseline is None or "baseline" in block) and all(
            name in block.get("compared", {}) for name in run.compared
        )
        measured = all(each.measured for each in (run, *run.needed.values()))
        if (compared and measured) or run.config.mode == "report":
            return stored
    with run.store.held(), run.store.status(), memory_errors(run):
        results = evaluate_run(run, models, _needed_results(run, models))
    return Outcome(run=run, results=results, stored=False, path=run.folder / "results.json")


def _stored_outcome(run: Run) -> Outcome | None:
    results = run.stored()
    if results is None:
        return None
    marks = version_marks(results["moe_lab"])
    return Outcome(run=run, results=results, stored=True, path=run.folder / "results.json", marks=marks)


def _needed_results(run: Run, models: ModelPool) -> dict[str, dict[str, Any]]:
    results = {}
    for name, other in run.needed.items():
        try:
            results[name] = _first(other, models)
        except MoeLabError as error:
            raise type(error)(
                f"{other.folder.name}, which {run.folder.name} is compared with, failed: {error}\n"
                "baseline=false leaves comparisons out."
            ) from error
    return results


def _first(run: Run, models: ModelPool) -> dict[str, Any]:
    """A run to compare with, its samples included: read, waited for if another process computes it, or computed."""
    from moe_lab.evaluation import evaluate_run
    from moe_lab.results.samples import read_samples

    results = run.stored()
    if results is None or not run.measured:
        with run.store.held(wait=True):
            results = run.stored()
            if results is None or not run.measured:
                with run.store.status():
                    results = evaluate_run(run, models, _needed_results(run, models))
    samples = read_samples(run.folder, list(run.tasks["tasks"]))
    return {"run_id": run.run_id, "results": results["results"], "samples": samples}


def _identified(
    config: Config, method: Method, facts: ModelFacts, tasks: TaskDict, samples: dict[str, list[int]]
) -> Run:
    from moe_lab.judges.chosen import judges_of
    from moe_lab.models.hub import model_source
    from moe_lab.models.identity import model_identity
    from moe_lab.results.identity import folder_name, identity, run_id
    from moe_lab.tasks import documents_digest

    content = identity(
        config,
        method,
        model=model_identity(model_source(config.model), config.model),
        facts=facts,
        tasks=tasks,
        samples=samples,
        documents=documents_digest(tasks, samples),
    )
    judges = judges_of(config, tasks)
    judged = {"judges": [judge.identity for judge in judges]} if judges else {}
    digest = run_id(content | judged)
    run = Run(
        config=config,
        run_id=digest,
        answers_id=run_id(content),
        folder=Path(config.output_dir) / "runs" / folder_name(config, digest),
        facts=facts,
        method=method,
        tasks=tasks,
        samples=samples,
        judges=judges,
    )
    if config.mode != "report" and not run.done:
        for judge in judges:
            judge.check()
    return run


def _baseline_config(config: Config) -> Config:
    groups = ("method=", "method.", "tuning=", "tuning.", "seed=", "seeds=", "rerun=")
    kept = [override for override in config.overrides if not override.lstrip("+").startswith(groups)]
    return replace(
        config,
        method=get_method("base").Config(name="base"),
        seed=0,
        seeds=1,
        rerun=False,
        baseline=False,
        overrides=["method=base", *kept],
    )
