"""mode=prefetch: fetches all files that the same command needs offline. Loads no weights into
memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from moe_lab.config.compose import Cell
from moe_lab.config.overrides import OWN_GRID
from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_error, print_line
from moe_lab.errors import ConfigError, MoeLabError, exit_code
from moe_lab.methods import get_method
from moe_lab.methods.method import DesignMethod
from moe_lab.runs.experiments.composing import experiment_configs
from moe_lab.runs.planning.rows import task_name


def prefetch(configs: Sequence[Config], cells: Sequence[Cell] = ()) -> int:
    """Fetch the files that a grid or its experiments need, and print where they are. Returns the
    exit code.

    A failure does not stop the other downloads; the same command continues. Raises ConfigError in
    offline mode.
    """
    from moe_lab.models.hub import is_offline

    if any(config.experiment for config in configs):
        if len(configs) > 1:
            raise ConfigError(OWN_GRID)
        configs = experiment_configs(configs[0], cells[0])
    if is_offline() or any(config.offline for config in configs):
        raise ConfigError(
            "mode=prefetch needs the network, which offline=true or HF_HUB_OFFLINE=1 forbids. "
            "Leave that out."
        )
    errors: list[MoeLabError] = []
    for step in STEPS:
        for config in _different(configs, step.reads):
            try:
                for line in step.fetch(config):
                    print_line(line)
            except MoeLabError as error:
                errors.append(error)
    for failure in errors:
        print_error(failure)
    return exit_code(errors[0]) if errors else 0


def _different(configs: Sequence[Config], reads: Callable[[Config], object]) -> list[Config]:
    """The configurations without those in which a step reads the same as in a later one."""
    by_content = {repr(reads(config)): config for config in configs}
    return list(by_content.values())


def _model(config: Config) -> Iterator[str]:
    """The model's configuration, tokenizer and, unless the method has an architecture of its own,
    weights; and its adapter."""
    from moe_lab.models.source import adapter_folder, load_config, model_folder
    from moe_lab.models.tokenizer import load_tokenizer

    model = config.model
    load_config(model, offline=False)
    load_tokenizer(model, offline=False)
    folder = model_folder(model, offline=False, weights=_reads_weights(config))
    yield f"model {model.name}: {folder}"
    adapter = adapter_folder(model, offline=False)
    if adapter is not None:
        yield f"adapter {model.peft}: {adapter}"


def _reads_weights(config: Config) -> bool:
    """Whether the method needs the model's weights."""
    return not issubclass(get_method(config.method.name), DesignMethod)


def _task(config: Config) -> Iterator[str]:
    """The data sets of a task with all splits, which `datasets` prepares together, and the models
    of its judges."""
    from moe_lab.tasks.judges import judges_of
    from moe_lab.tasks.judges.local import LocalJudge
    from moe_lab.tasks.loading import load_tasks

    tasks = load_tasks(config)
    sources = dict.fromkeys(task.data_source for task in tasks["tasks"].values())
    yield f"task {task_name(config)}: {', '.join(sources)}"
    for judge in judges_of(config, tasks):
        if isinstance(judge, LocalJudge):
            _ = judge.tokenizer  # the first use fetches it
            yield f"judge {judge.name}: {judge.folder()}"


def _method(config: Config) -> Iterator[str]:
    """Data of a method other than the task's examples, such as C3PO's references."""
    from moe_lab.methods.references.embeddings import encoder_folder
    from moe_lab.runs.model_files import facts_of

    embeddings = getattr(config.method, "embeddings", None)
    if embeddings is not None and not embeddings.endswith(".safetensors"):
        yield f"embeddings {embeddings}: {encoder_folder(embeddings)}"
    if get_method(config.method.name)(config.method).data_identity(config, facts_of(config)):
        yield f"method {config.method.name}: its data other than {task_name(config)}"


@dataclass(frozen=True)
class Step:
    """Something that is fetched."""

    fetch: Callable[[Config], Iterator[str]]
    """Fetches it for a configuration; yields lines that say where it is."""
    reads: Callable[[Config], object]
    """What it reads in a configuration. It is done once for configurations with equal content."""


STEPS = (
    Step(_model, lambda config: (config.model, _reads_weights(config))),
    Step(_task, lambda config: (config.task, config.data_dir)),
    Step(_method, lambda config: (config.method, config.task, config.data_dir)),
)
