"""The documents that C3PO's references come from, loaded and chosen.

Nothing here needs the model: missing data is reported before weights load.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from moe_lab.config.paths import resource_folder
from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import ConfigError, TaskError
from moe_lab.methods.references.sources import Source, reference_sources

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict


Part = tuple[str, TaskConfig, tuple[str, ...]]
"""A task of a source by its name, and the splits that its documents may come from."""
USUAL_SPLITS = ("training_split", "validation_split", "test_split")
"""Where a reference task's documents come from: the first that there is."""


@dataclass(frozen=True, kw_only=True)
class ReferenceDocuments:
    """Documents to ask the untouched model, none of them a test document."""

    label: str
    """Where the choice of reference tasks comes from: "Table 7", "own train split", ..."""
    tasks: dict[str, Any]
    """lm-eval's tasks by `<task>:<split>`, evaluating that split."""
    samples: dict[str, list[int]]
    """Sorted document numbers of each."""
    metrics: dict[str, str]
    """`metric,filter` by which generated answers of each are right."""
    sources: list[dict[str, Any]]
    """Per source: title, tasks, absent (no files of these), wanted (None: all), documents (there are), dropped (test
    documents), asked."""

    @property
    def dropped(self) -> int:
        return sum(source["dropped"] for source in self.sources)


def reference_documents(config: Config, settings: Any, tested: TaskDict | None = None) -> ReferenceDocuments:
    """The documents that a run's references are taken from.

    Args:
        config: the run's; references are asked as its task is (`task.answer`, chat template), without examples.
        settings: `reference` (None, a task, or a list of them) and `reference_size` (of every source; None: its own).
        tested: the run's tasks, if they are loaded already; none of their documents is used.

    Raises ConfigError and TaskError for tasks that cannot be had, and where no document is left.
    """
    from moe_lab.tasks.loading import load_tasks
    from moe_lab.tasks.tuning_split import document_hashes

    label, sources = reference_sources(config.task.name, settings.reference)
    tests = (tested or load_tasks(config))["tasks"].values()
    known = frozenset[str]().union(*(one for task in tests for one in document_hashes(task)))
    found = ReferenceDocuments(label=label, tasks={}, samples={}, metrics={}, sources=[])
    for source in sources:
        parts, absent = _parts(config, source)
        tasks = _load(config, source, parts, found.metrics)
        sized = replace(source, size=settings.reference_size or source.size)
        chosen = _choose(found, sized, tasks, known, config.sample_seed)
        found.sources.append({"title": source.title, "tasks": list(tasks), "absent": absent, **chosen})
    if not any(found.samples.values()):
        raise ConfigError(
            f"No reference is left: all {found.dropped} documents of {', '.join(found.tasks)} are evaluated.\n"
            "method.reference=<other lm-eval task> names other ones."
        )
    return found


def check_asked_enough(documents: ReferenceDocuments, settings: Any) -> None:
    """Raise ConfigError where fewer questions are asked than `settings.k` neighbours are wanted."""
    asked = sum(len(numbers) for numbers in documents.samples.values())
    if settings.epsilon is None and asked < settings.k:
        raise ConfigError(
            f"method.k={settings.k} neighbours are wanted, and {asked} reference questions of "
            f"{', '.join(documents.tasks)} are asked.\n"
            "method.reference=<lm-eval task> names other ones, method.reference_size=<n> asks more."
        )


def _parts(config: Config, source: Source) -> tuple[list[Part], list[str]]:
    """(the source's tasks, names of those left out): of several tasks, those without a folder in data_dir are."""
    names = source.tasks if config.data_dir or not source.hub_tasks else source.hub_tasks
    parts = [(name, *_task(config, name, source.own)) for name in names]
    there = [part for part in parts if config.data_dir is None or _folder(config.data_dir, part[1]).is_dir()]
    if len(parts) == 1 or not there:
        return parts, []
    return there, [part[0] for part in parts if part not in there]


def _load(config: Config, source: Source, parts: list[Part], metrics: dict[str, str]) -> dict[str, Any]:
    """The parts' tasks by `<task>:<split>`; `metrics` gets those that generate."""
    from moe_lab.tasks.loading import load_tasks

    tasks: dict[str, Any] = {}
    for name, one, splits in parts:
        alone = replace(config, task=one, num_fewshot=0, limit=None, samples=None)
        try:
            loaded = load_tasks(replace(alone, predict_only=False), splits=splits)
        except TaskError as error:
            raise _cannot_load(config, source, name, error) from error
        split_tasks = {f"{key}:{task.config.test_split}": task for key, task in loaded["tasks"].items()}
        metrics |= {
            key: one.metric or _first_metric(task)
            for key, task in split_tasks.items()
            if _answerable(key, task) == "generate_until"
        }
        tasks |= split_tasks
    return tasks


def _answerable(key: str, task: Any) -> str:
    """The kind of a task's answers. Raises ConfigError for tasks whose answers are not right or wrong by themselves."""
    kind = task.get_config("output_type")
    if kind not in ("multiple_choice", "generate_until") or getattr(task, "UNSAFE_CODE", False):
        raise ConfigError(
            f"{key} cannot be a reference of C3PO: its answers are neither choices nor texts that are right or wrong."
        )
    return kind


def _first_metric(task: Any) -> str:
    return f"{task.config.metric_list[0]['metric']},{task._filters[0].name}"


def _folder(data_dir: str, task: TaskConfig) -> Path:
    return Path(data_dir) / (task.data_folder or str(task.name))


def _task(config: Config, name: str, own: bool) -> tuple[TaskConfig, tuple[str, ...]]:
    """The task that a name stands for, an option of conf/task/ or a name of lm-eval, and its splits."""
    from moe_lab.config.validators import build

    if own:
        task = replace(config.task, name=name)
        return task, ("training_split",)
    name, _, split = name.partition(":")
    file = resource_folder("conf") / "task" / f"{name}.yaml"
    values: dict[str, Any] = {"name": name}
    if file.exists():
        import yaml

        values = {"name": name, **yaml.safe_load(file.read_text(encoding="utf-8"))}
    task = build(TaskConfig, values, prefix="task.")
    asked = replace(task, answer=config.task.answer, include_path=config.task.include_path)
    return asked, (split,) if split else USUAL_SPLITS


def _cannot_load(config: Config, source: Source, name: str, error: TaskError) -> ConfigError:
    if source.own:
        return ConfigError(
            f"{error}\nC3PO's references are questions that the model answers correctly; Table 7 of the paper has none "
            f"for {name}.\nmethod.reference=<lm-eval task>, or <lm-eval task>:<split>, says where to take them from."
        )
    return ConfigError(
        f"The references of task={config.task.name} come from {name}. {error}\n"
        "method.reference=<lm-eval task> names other ones."
    )


def _choose(
    found: ReferenceDocuments, source: Source, tasks: dict[str, Any], tested: frozenset[str], seed: int
) -> dict[str, Any]:
    """Add the source's documents: the first ones of one permutation of all that are no test documents.

    Returns how many there are.
    """
    from moe_lab.tasks.tuning_split import document_hashes

    hashes = {key: document_hashes(task) for key, task in tasks.items()}
    everything = [(key, number) for key in tasks for number in range(len(hashes[key]))]
    free = [(key, number) for key, number in everything if not hashes[key][number] & tested]
    Random(f"{source.title} {seed}").shuffle(free)
    chosen = free[: source.size]
    for key, task in tasks.items():
        numbers = {number for name, number in chosen if name == key} | set(found.samples.get(key, ()))
        found.tasks[key], found.samples[key] = task, sorted(numbers)
    return {
        "wanted": source.size,
        "documents": len(everything),
        "dropped": len(everything) - len(free),
        "asked": len(chosen),
    }
