"""Checks of a task's YAML before its data and any weights load. Errors name the task, the file and
the line.

lm-eval skips a file that it cannot read, and takes a wrong aggregation, metric, or argument of a
filter for a value that fails after all answers.
"""

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import lm_eval.api.metrics
import lm_eval.filters  # noqa: F401 - registers lm-eval's filters, as the line above its metrics
import yaml
from lm_eval.api.registry import aggregation_registry, filter_registry, metric_registry
from lm_eval.api.samplers import SAMPLER_REGISTRY
from lm_eval.config.task import FewshotConfig, TaskConfig
from lm_eval.tasks._yaml_loader import _import_func_in_yml, load_yaml

from moe_lab.config.validators import did_you_mean
from moe_lab.errors import TaskError, first_line
from moe_lab.models.lm_eval_internals import aggregation_of_metric, compiled_template
from moe_lab.tasks.lm_eval_versions.metrics import (
    computed_metrics,
    loads_metrics_of_evaluate,
    metric_keys,
    output_filters,
)

KEYS = frozenset(field.name for field in fields(TaskConfig)) | {"tag", "group", "task_list"}
FEWSHOT_KEYS = frozenset(field.name for field in fields(FewshotConfig))
METRIC_KEYS = metric_keys()
EXACT_MATCH_KEYS = METRIC_KEYS | {
    "regexes_to_ignore",
    "ignore_case",
    "ignore_punctuation",
    "ignore_numbers",
}
TEMPLATES = ("description", "doc_to_text", "doc_to_target", "doc_to_choice", "gen_prefix")
FUNCTIONS = ("process_docs", "process_results")
OUTPUT_TYPES = ("loglikelihood", "loglikelihood_rolling", "multiple_choice", "generate_until")


def check_readable(include_path: str, names: Iterable[str], tasks: Iterable[str]) -> None:
    """Raise TaskError for a YAML of `include_path` that cannot be read, if it may be meant by one
    of `names`.

    A group or tag may lack the task of any such file. A task of `tasks`, which can be read, is
    meant only by a file that has its name.
    """
    for file in sorted(Path(include_path).rglob("*.yaml")):
        try:
            load_yaml(file, resolve_func=False)
        except Exception as error:
            text = file.read_text(encoding="utf-8", errors="replace")
            for name in names:
                line = rf"^\s*task:\s*['\"]?{re.escape(name)}\b"
                if name not in tasks or re.search(line, text, re.MULTILINE):
                    raise TaskError(
                        f"task.name={name}: a YAML cannot be read.\n{_problem(file, error)}"
                    ) from error


def _problem(file: Path, error: Exception) -> str:
    """The file, line and reason of a YAML that cannot be read. The file may be one that it
    includes."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"{file}: {first_line(error)}"
    reason = getattr(error, "problem", None) or first_line(error)
    return f"{mark.name}, line {mark.line + 1}: {reason}"


class YamlChecks:
    """The checks of one task.

    Args:
        name: of the task.
        file: its YAML.
        strict: whether to refuse settings that lm-eval ignores. lm-eval's own tasks have some.
        root: where the task is in the file, if a group defines it.
    """

    def __init__(self, name: str, file: Path, strict: bool, root: tuple[str | int, ...] = ()):
        self.name = name
        self.file = file
        self.strict = strict
        self._root = root

    def error(self, message: str, *keys: str | int) -> TaskError:
        """The error for the value of a key, or of a key inside of it."""
        return TaskError(f"Task {self.name}, {self.place(*keys)}: {message}")

    def place(self, *keys: str | int) -> str:
        """The file and line of a key; the file alone, if it is none of the task's own keys."""
        for file in _with_includes(self.file):
            line = _line(file, (*self._root, *keys))
            if line is not None:
                return f"{file}, line {line}"
        return str(self.file)

    def check_functions(self) -> None:
        """Raise TaskError for a `!function` that cannot be imported."""
        for file in _with_includes(self.file):
            for node in _scalars(yaml.compose(file.read_bytes(), Loader=yaml.SafeLoader)):
                if node.tag != "!function":
                    continue
                try:
                    _import_func_in_yml(node.value, file.parent)
                except Exception as error:
                    reason = f"{type(error).__name__}: {first_line(error)}"
                    line = node.start_mark.line + 1
                    raise TaskError(
                        f"Task {self.name}, {file}, line {line}: !function {node.value}: {reason}."
                    ) from error

    def check_group(self, config: dict[str, Any], known: Container[str]) -> dict[str, "YamlChecks"]:
        """Raise TaskError for a member of a group that does not exist, and for an impossible
        setting of the group.

        Args:
            known: names of tasks, groups and tags.

        Returns the checks of the tasks that the group defines, by lm-eval's name of them.
        """
        members = config.get("task") or []
        if isinstance(members, str):
            members = [members]
        defined = {}
        for number, member in enumerate(members):
            name = member.get("task") if isinstance(member, dict) else member
            if not isinstance(name, str) or name in known:
                continue
            if isinstance(member, str):
                raise self.error(f"{name} is no task, group or tag.", "task", number)
            full_name = f"{self.name}::{name}"
            checks = YamlChecks(full_name, self.file, self.strict, root=("task", number))
            checks.check_settings(member)
            defined[full_name] = checks
        self._check_group_scores(config.get("aggregate_metric_list") or [])
        return defined

    def _check_group_scores(self, scores: Any) -> None:
        """Raise TaskError for a score of a group that is neither a mean nor a function."""
        if isinstance(scores, dict):
            scores = [scores]
        for number, score in enumerate(scores):
            aggregation = score.get("aggregation", "mean") if isinstance(score, dict) else None
            if aggregation != "mean" and not callable(aggregation):
                raise self.error(
                    f"{score!r}: a group takes the mean of its tasks, or a function. Write "
                    f"{{metric: acc}}",
                    "aggregate_metric_list",
                    number,
                )

    def check_group_metrics(self, metrics: Iterable[str], reported: Container[str]) -> None:
        """Raise TaskError for a metric of a group that none of its tasks reports: the group would
        have no score."""
        for number, metric in enumerate(metrics):
            if metric not in reported:
                raise self.error(
                    f"no task of the group reports {metric}.", "aggregate_metric_list", number
                )

    def check_settings(self, config: dict[str, Any]) -> None:
        """Raise TaskError for an impossible setting in a task's whole configuration."""
        self._check_keys(config, KEYS)
        kind = config.get("output_type", "generate_until")
        if kind not in OUTPUT_TYPES:
            close = did_you_mean(str(kind), OUTPUT_TYPES)
            types = ", ".join(OUTPUT_TYPES)
            raise self.error(
                f"output_type={kind} is unknown.{close}\nOutput types: {types}.", "output_type"
            )
        for key in FUNCTIONS:
            value = config.get(key)
            if value is not None and not callable(value):
                raise self.error(
                    f"{key}={value} is no function. Write {key}: !function <module>.<function>", key
                )
        for key, least in (("repeats", 1), ("num_fewshot", 0)):
            value = config.get(key)
            if value is not None and (not isinstance(value, int) or value < least):
                raise self.error(f"{key}={value}: must be an integer of at least {least}.", key)
        for key in TEMPLATES:
            self._check_template(key, config.get(key))
        examples = config.get("fewshot_config")
        if examples is not None:
            self._check_examples(examples)
        if config.get("metric_list") is not None:
            self._check_metrics(config, kind)
        if config.get("filter_list") is not None:
            self._check_filter_list(config["filter_list"])

    def _check_keys(self, given: Any, known: Iterable[str], *place: str | int) -> None:
        """Raise TaskError for a value that is no mapping, and for a key of it that is not known."""
        if not isinstance(given, dict):
            raise self.error(f"{given!r}: keys and values are expected.", *place)
        for key in given:
            if key not in known:
                close = did_you_mean(str(key), sorted(known))
                raise self.error(f"lm-eval knows no key {key}.{close}", *place, key)

    def _check_template(self, key: str, template: Any) -> None:
        """Raise TaskError for a text that is no jinja template. Other values are not checked."""
        if not isinstance(template, str):
            return
        try:
            compiled_template(template)
        except Exception as error:
            raise self.error(f"{key} is no jinja template: {first_line(error)}.", key) from error

    def _check_examples(self, examples: Any) -> None:
        """Raise TaskError for an impossible `fewshot_config`."""
        self._check_keys(examples, FEWSHOT_KEYS, "fewshot_config")
        sampler = examples.get("sampler", "default")
        if isinstance(sampler, str) and sampler not in SAMPLER_REGISTRY:
            known = ", ".join(SAMPLER_REGISTRY)
            raise self.error(
                f"sampler={sampler} is unknown. Samplers: {known}.", "fewshot_config", "sampler"
            )

    def _check_metrics(self, config: dict[str, Any], kind: str) -> None:
        """Raise TaskError for an impossible `metric_list`."""
        if not isinstance(config["metric_list"], list):
            raise self.error("metric_list: a list of metrics is expected.", "metric_list")
        for number, settings in enumerate(config["metric_list"]):
            place = ("metric_list", number)
            metric = settings.get("metric") if isinstance(settings, dict) else None
            if not isinstance(metric, str) and not callable(metric):
                raise self.error(
                    f"{settings!r} is no metric. Write {{metric: acc, aggregation: mean}}", *place
                )
            self._check_aggregation(settings, place)
            if config.get("process_results") is None:
                self._check_computed(settings, kind, place)
            elif self.strict:
                self._check_spelling(settings, place)

    def _check_aggregation(self, settings: dict[str, Any], place: tuple[str | int, ...]) -> None:
        """Raise TaskError for a metric whose aggregation is missing or unknown."""
        metric = settings["metric"]
        aggregation = settings.get("aggregation")
        if "aggregation" not in settings and aggregation_of_metric(_named(metric)) is None:
            raise self.error(
                f"metric {_named(metric)} needs an aggregation, for example mean.", *place
            )
        if isinstance(aggregation, str) and aggregation not in aggregation_registry:
            names = sorted(aggregation_registry)
            close = did_you_mean(aggregation, names)
            raise self.error(
                f"aggregation={aggregation} of metric {_named(metric)} is unknown.{close}\n"
                f"Aggregations: {', '.join(names)}, or !function <module>.<function>.",
                *place,
                "aggregation",
            )

    def _check_computed(
        self, settings: dict[str, Any], kind: str, place: tuple[str | int, ...]
    ) -> None:
        """Raise TaskError for a metric that does not exist, or that lm-eval does not compute for an
        output type."""
        metric = settings["metric"]
        computed = computed_metrics(kind)
        of_evaluate = settings.get("hf_evaluate") is True
        registered = isinstance(metric, str) and metric in metric_registry and not of_evaluate
        if isinstance(metric, str) and not registered and not _evaluate_has(metric):
            close = did_you_mean(metric, computed)
            raise self.error(
                f"metric {metric} is unknown.{close}\nMetrics of {kind}: {', '.join(computed)}.",
                *place,
                "metric",
            )
        if not self.strict:
            return
        of_texts = kind == "generate_until"
        # lm-eval computes any function of generated texts, and metrics of `evaluate`
        is_any_metric = callable(settings.get("aggregation")) or not registered
        is_computed = metric in computed or (of_texts and is_any_metric)
        if not is_computed:
            raise self.error(
                f"lm-eval does not compute metric {_named(metric)} for output_type={kind}.\n"
                f"It computes {', '.join(computed)}; for others write a process_results.",
                *place,
                "metric",
            )
        if metric == "exact_match" and of_texts:
            self._check_keys(settings, EXACT_MATCH_KEYS, *place)
        elif registered or not of_texts:
            self._check_spelling(settings, place)

    def _check_spelling(self, settings: dict[str, Any], place: tuple[str | int, ...]) -> None:
        """Raise TaskError for a key of a metric that is a misspelt one. lm-eval ignores unknown
        keys."""
        for key in settings.keys() - METRIC_KEYS:
            close = get_close_matches(str(key), METRIC_KEYS, n=1, cutoff=0.8)
            if close:
                raise self.error(
                    f"a metric has no key {key}. Did you mean {close[0]!r}?", *place, key
                )

    def _check_filter_list(self, ensembles: Any) -> None:
        """Raise TaskError for an impossible `filter_list`."""
        if not isinstance(ensembles, list):
            raise self.error("filter_list: a list of filters is expected.", "filter_list")
        names = sorted(filter_registry)
        for number, ensemble in enumerate(ensembles):
            place = ("filter_list", number)
            if not isinstance(ensemble, dict) or not {"name", "filter"} <= ensemble.keys():
                raise self.error(
                    "a filter needs a name, and the list filter: of its steps.", *place
                )
            for step_number, step in enumerate(ensemble["filter"]):
                function = step.get("function") if isinstance(step, dict) else None
                step_place = (*place, "filter", step_number)
                if function is None:
                    raise self.error(
                        f"{step!r} has no function. Write {{function: take_first}}", *step_place
                    )
                if isinstance(function, str) and function not in filter_registry:
                    raise self.error(
                        f"filter function={function} is unknown.{did_you_mean(function, names)}\n"
                        f"Filters: {', '.join(names)}.",
                        *step_place,
                        "function",
                    )

    def check_filters(self, task: Any) -> None:
        """Raise TaskError for arguments that a filter of the task refuses. lm-eval makes filters
        after all answers."""
        for number, ensemble in enumerate(output_filters(task)):
            for step_number, make in enumerate(ensemble.filters):
                try:
                    make()
                except Exception as error:
                    function = getattr(make, "func", make)
                    raise self.error(
                        f"filter {ensemble.name}: {_named(function)} does not take these "
                        f"arguments: {first_line(error)}.",
                        "filter_list",
                        number,
                        "filter",
                        step_number,
                    ) from error

    def undefined(self, variable: str) -> str | None:
        """The place of the first template that has a variable."""
        for key in TEMPLATES:
            for file in _with_includes(self.file):
                template = load_yaml(file, resolve_func=False, recursive=False).get(key)
                if isinstance(template, str) and re.search(rf"\b{re.escape(variable)}\b", template):
                    return self.place(key)
        return None


def _evaluate_has(metric: str) -> bool:
    """Whether the package `evaluate` has a metric, and lm-eval loads it."""
    if not loads_metrics_of_evaluate():
        return False
    import evaluate

    try:
        evaluate.load(metric)
    except Exception:  # of any kind: the code of a metric is fetched and imported
        return False
    return True


def _named(function: Any) -> str:
    """The name of a function; a text itself."""
    return str(getattr(function, "__name__", function))


def _with_includes(file: Path) -> list[Path]:
    """The file and those that it includes, the ones whose keys win first. They can be read."""
    includes = load_yaml(file, resolve_func=False, recursive=False).get("include", [])
    if not isinstance(includes, list):
        includes = [includes]
    files = [file]
    for include in reversed(includes):
        files += _with_includes((file.parent / include).resolve())
    return files


def _line(file: Path, keys: tuple[str | int, ...]) -> int | None:
    """The line of a key, or of the last key on the way to it that the file has; None: it does not
    have the first."""
    node = yaml.compose(file.read_bytes(), Loader=yaml.SafeLoader)
    line = None
    for key in keys:
        place = None
        if isinstance(node, yaml.MappingNode):
            for key_node, value_node in node.value:
                if key_node.value == key:
                    place = key_node
                    value = value_node
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            place = node.value[key]
            value = place
        if place is None:
            break
        line = place.start_mark.line + 1
        node = value
    return line


def _scalars(node: Any) -> Iterator[yaml.ScalarNode]:
    """All values below a node of a YAML file. Keys of mappings are left out."""
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _scalars(item)
    elif isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from _scalars(value)
