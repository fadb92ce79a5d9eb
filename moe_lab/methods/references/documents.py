"""Chooses the documents of C3PO's references: their tasks, and a sample of each task's documents.

None of this needs the model, so missing data is reported before weights load.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from moe_lab.config.catalog import resource_folder
from moe_lab.config.schema import Config, TaskConfig
from moe_lab.config.validators import build
from moe_lab.errors import ConfigError, TaskError
from moe_lab.models.distributed import num_processes
from moe_lab.tasks.document_hashes import document_hashes
from moe_lab.tasks.lm_eval_versions.documents import executes_code
from moe_lab.tasks.lm_eval_versions.metrics import output_filters
from moe_lab.tasks.loading import load_tasks, once, task_key

USUAL_SPLITS = ("training_split", "validation_split", "test_split")
"""The documents of a reference task come from the first of these splits that the task has."""


@dataclass(frozen=True)
class Source:
    """A reference set of the paper's Table 7, or another one."""

    title: str
    tasks: tuple[str, ...]
    """Options of conf/task/ or lm-eval's names, with `:<split>` for an unusual split."""
    size: int | None = None
    """The largest number of documents of all its tasks together; None: all."""
    hub_tasks: tuple[str, ...] = ()
    """Names that replace `tasks` where data_dir has none of their folders."""
    is_own_train_split: bool = False
    """Whether this is the train split of the evaluated task."""


COMMONSENSE = (
    Source("CommonsenseQA", ("commonsense_qa",), 6000),
    Source("Social-IQA", ("social_iqa",), 6000),
)
SCIENCE = (Source("OpenBookQA", ("openbookqa",), 2000), Source("SciQ", ("sciq",), 2000))
GENERAL = (
    Source(
        "BIG-bench",
        ("bigbench_choice",),
        8000,
        ("bigbench_multiple_choice_a", "bigbench_multiple_choice_b"),
    ),
    # Not ReCoRD, which has no choices, nor MultiRC, whose labels lm-eval 0.4.13 mixes up.
    Source("SuperGLUE", ("boolq", "cb", "copa", "sglue_rte", "wic", "wsc"), 8000),
)
TABLE_7 = {
    "mmlu": GENERAL,
    "hellaswag": COMMONSENSE,
    "piqa": COMMONSENSE,
    "arc_challenge": SCIENCE,
    "arc_easy": SCIENCE,
    "winogrande": (Source("KnowRef", ("knowref",), 2000),),
}
"""The paper's reference sets and their sizes by lm-eval's name of the task."""
TOY = {
    "toy_choice": (Source("near", ("toy_choice:near",)),),
    "toy_rules": (Source("plus", ("toy_rules:plus",)),),
    "toy_rules_max": (Source("max", ("toy_rules:max",)),),
}
"""Reference sets of the toy tasks. In `toy_rules` and `toy_rules_max` the references follow the
rule of their own task. `toy_choice:far`, which is not used here, has questions about other things
than the test."""


class ChosenSources(NamedTuple):
    """Where references come from."""

    label: str
    """How the sources were chosen: "method.reference", "Table 7", "own train split", ..."""
    sources: list[Source]


def reference_sources(task: str | list[str], reference: str | list[str] | None) -> ChosenSources:
    """The sources of the references of one or several evaluated tasks.

    They are the tasks that `reference` names; else the paper's; else the task's own train split.
    Raises ConfigError if `reference` is empty.
    """
    if reference is not None:
        names = [reference] if isinstance(reference, str) else list(reference)
        if not names:
            raise ConfigError(
                "method.reference=[] names no task. Leave it out, or name an lm-eval task."
            )
        return ChosenSources("method.reference", [Source(name, (name,)) for name in names])
    task_names = [task] if isinstance(task, str) else task
    labels: dict[Source, str] = {}
    for name in task_names:
        table_name = "mmlu" if name.startswith("mmlu_") else name
        if table_name in TABLE_7:
            labels |= dict.fromkeys(TABLE_7[table_name], "Table 7")
        elif table_name in TOY:
            labels |= dict.fromkeys(TOY[table_name], "the toy world's own")
        else:
            labels[Source(f"{name}, train", (name,), is_own_train_split=True)] = "own train split"
    label = ", ".join(dict.fromkeys(labels.values()))
    return ChosenSources(label, list(labels))


@dataclass(frozen=True, kw_only=True)
class ReferenceDocuments:
    """Documents for the base model to answer. None of them is a test document."""

    label: str
    """How the reference tasks were chosen: "Table 7", "own train split", ..."""
    tasks: dict[str, Any]
    """lm-eval's tasks by `<task>:<split>`, evaluating that split."""
    samples: dict[str, list[int]]
    """Sorted document numbers of each."""
    metrics: dict[str, str]
    """`metric,filter` that grades generated answers of each task."""
    sources: list[dict[str, Any]]
    """Per source: title, tasks, data (where they are from), wanted (None: all),
    documents (in total), dropped (test documents), asked."""

    @property
    def dropped(self) -> int:
        """Test documents that were left out of all sources."""
        return sum(source["dropped"] for source in self.sources)


def reference_documents(config: Config, settings: Any) -> ReferenceDocuments:
    """The documents that a run's references are taken from. The runs of a grid often share them.

    Args:
        config: of the run. References are asked like its task (`task.answer`, chat template),
            without examples.
        settings: `reference` (None, a task, or a list of them) and `reference_size` (of every
            source; None: its own).

    Raises ConfigError and TaskError for missing tasks, and if no document is left.
    """
    key = _ReferencesKey(
        task_key(config), repr(settings.reference), settings.reference_size, config.sample_seed
    )
    return once(key, lambda: _reference_documents(config, settings))


@dataclass(frozen=True)
class _ReferencesKey:
    """All that determines the documents of references."""

    task: str
    """`task_key` of the evaluated task."""
    reference: str
    """As text, since a list is not hashable."""
    reference_size: int | None
    sample_seed: int


def _reference_documents(config: Config, settings: Any) -> ReferenceDocuments:
    """`reference_documents`, chosen now."""
    label, sources = reference_sources(config.task.name, settings.reference)
    test_hashes: set[str] = set()
    for task in load_tasks(config)["tasks"].values():
        test_hashes.update(*document_hashes(task))

    documents = ReferenceDocuments(label=label, tasks={}, samples={}, metrics={}, sources=[])
    numbers_by_task: dict[str, set[int]] = {}
    for source in sources:
        loaded = _load(config, source)
        tasks = loaded.tasks
        documents.tasks.update(tasks)
        documents.metrics.update(loaded.metrics)
        for key in tasks:
            numbers_by_task.setdefault(key, set())
        free = _documents_without(tasks, test_hashes)
        # the first ones of a permutation of all that are not test documents
        Random(f"{source.title} {config.sample_seed}").shuffle(free)
        size = settings.reference_size or source.size
        chosen = free[:size]
        for key, number in chosen:
            numbers_by_task[key].add(number)
        count = sum(len(document_hashes(task)) for task in tasks.values())
        documents.sources.append(
            {
                "title": source.title,
                "tasks": list(tasks),
                "data": list(dict.fromkeys(task.data_source for task in tasks.values())),
                "wanted": size,
                "documents": count,
                "dropped": count - len(free),
                "asked": len(chosen),
            }
        )
    for key, numbers in numbers_by_task.items():
        documents.samples[key] = sorted(numbers)
    if not any(documents.samples.values()):
        raise ConfigError(
            f"All documents of {', '.join(documents.tasks)} are evaluated. Use another "
            "method.reference=."
        )
    return documents


def _documents_without(tasks: Mapping[str, Any], excluded: set[str]) -> list[tuple[str, int]]:
    """(`<task>:<split>`, document number) of all documents that have no hash in `excluded`."""
    documents = []
    for key, task in tasks.items():
        for number, hashes in enumerate(document_hashes(task)):
            if hashes.isdisjoint(excluded):
                documents.append((key, number))
    return documents


class LoadedSource(NamedTuple):
    """The tasks of a source."""

    tasks: dict[str, Any]
    """By `<task>:<split>`."""
    metrics: dict[str, str]
    """`metric,filter` that grades the answers, of tasks whose answers are generated."""


def _load(config: Config, source: Source) -> LoadedSource:
    """Load the tasks of a source. Raises ConfigError for answers that cannot be graded one by
    one."""
    tasks: dict[str, Any] = {}
    metrics: dict[str, str] = {}
    for name in _task_names(config, source):
        named = named_task(config, name, source.is_own_train_split)
        alone = replace(
            config, task=named.task, num_fewshot=0, limit=None, samples=None, predict_only=False
        )
        try:
            loaded = load_tasks(alone, splits=named.splits)
        except TaskError as error:
            raise ConfigError(
                f"The references of task={config.task.name} come from {name}. {error}\n"
                "Use others: method.reference=<lm-eval task>, or <lm-eval task>:<split>."
            ) from error
        for task_name, task in loaded["tasks"].items():
            key = f"{task_name}:{task.config.test_split}"
            _check_answers(key, task)
            tasks[key] = task
            if task.get_config("output_type") == "generate_until":
                metrics[key] = named.task.metric or _first_metric(task)
    return LoadedSource(tasks, metrics)


def _task_names(config: Config, source: Source) -> tuple[str, ...]:
    """The tasks of a source: its `hub_tasks`, if it has some and no folder of its `tasks` is in
    data_dir."""
    if not source.hub_tasks:
        return source.tasks
    if config.data_dir is None:
        return source.hub_tasks
    for name in source.tasks:
        task = named_task(config, name, source.is_own_train_split).task
        folder = task.data_folder or str(task.name)
        if (Path(config.data_dir) / folder).is_dir():
            return source.tasks
    return source.hub_tasks


def _check_answers(key: str, task: Any) -> None:
    """Raise ConfigError for a task whose answers cannot be graded one by one."""
    from moe_lab.engine.hf import THINK_END

    kind = task.get_config("output_type")
    if kind not in ("multiple_choice", "generate_until") or executes_code(task):
        raise ConfigError(
            f"{key} cannot be a reference of C3PO: its answers are neither choices nor texts that "
            "are right or wrong.\nUse another one with method.reference=<lm-eval task>."
        )
    if kind == "generate_until" and THINK_END in task.get_config("generation_kwargs"):
        raise ConfigError(
            f"{key} cannot be a reference of C3PO: the model reasons before its answer "
            "(model.think_end_token), and the answer's loss is that of its tokens right after the "
            "prompt.\n"
            "Use a multiple-choice task."
        )


def _first_metric(task: Any) -> str:
    """`metric,filter` of the task's first metric and filter."""
    return f"{task.config.metric_list[0]['metric']},{output_filters(task)[0].name}"


class NamedTask(NamedTuple):
    """A task whose documents are references."""

    task: TaskConfig
    splits: tuple[str, ...]
    """Its documents come from the first of these that exists, as `load_tasks` takes them."""


def named_task(config: Config, name: str, is_evaluated: bool = False) -> NamedTask:
    """The task of a name: an option of conf/task/, or one of lm-eval's; with `:<split>` that split.

    Args:
        config: of the run. The task is asked as the evaluated one is (`task.answer`).
        is_evaluated: whether it is the evaluated task, whose training split is meant.
    """
    if is_evaluated:
        return NamedTask(replace(config.task, name=name), ("training_split",))
    name, _, split = name.partition(":")
    file = resource_folder("conf") / "task" / f"{name}.yaml"
    values: dict[str, Any] = {"name": name}
    if file.exists():
        import yaml

        values = {"name": name, **yaml.safe_load(file.read_text(encoding="utf-8"))}
    task = build(TaskConfig, values, prefix="task.")
    task = replace(task, answer=config.task.answer, include_path=config.task.include_path)
    return NamedTask(task, (split,) if split else USUAL_SPLITS)


def check_choice_questions(config: Config, settings: Any) -> ReferenceDocuments:
    """The run's references.

    Raises ConfigError for tasks or references without choices, and for several processes.
    """
    check_one_process(config)
    _check_choices(config, load_tasks(config)["tasks"])
    documents = reference_documents(config, settings)
    _check_choices(config, documents.tasks)
    return documents


def _check_choices(config: Config, tasks: Mapping[str, Any]) -> None:
    """Raise ConfigError for a task that is not multiple-choice."""
    for name, task in tasks.items():
        if task.get_config("output_type") != "multiple_choice":
            raise ConfigError(
                f"method={config.method.name} is for multiple-choice questions, not for {name}. "
                "Use another task."
            )


def check_one_process(config: Config) -> None:
    """Raise ConfigError under torchrun."""
    if num_processes() > 1:
        raise ConfigError(f"method={config.method.name} runs in one process, without torchrun.")
