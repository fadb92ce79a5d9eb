"""Where a task comes from: its documents in words, and the functions that its YAML names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lm_eval.tasks._yaml_loader import load_yaml

from moe_lab.results.code import version_of
from moe_lab.results.code_digest import code_digest, module_digest
from moe_lab.results.identity import UNNAMED
from moe_lab.tasks.hub_data import hub_id
from moe_lab.tasks.local_data import is_local


def source_of(config: dict[str, Any], folder: Path | None) -> str:
    """Where a task's documents are from, in words."""
    path = hub_id(config)
    if folder is not None:
        return f"files in {folder}"
    if path is None:
        return "generated"
    return "files that its YAML names" if is_local(path) else f"data set {path} of the hub"


def functions_of_yaml(file: str | Path, include_path: str | None) -> dict[str, Any]:
    """The functions that a YAML names, by key: name and digest of the module, or `versioned` name
    and number.

    A decorated function or one that another function returned has the module of that one, and the
    name, too.
    """
    folder = Path(include_path) if include_path else None
    code: dict[str, Any] = {}
    for named in named_functions(file):
        version = version_of(named.function)
        if version is not None:
            code[named.key] = list(version)
            continue
        # lm-eval's order: a file next to the YAML, then a module
        module, _, name = Path(named.name).name.rpartition(".")
        source = Path(named.name).parent / f"{module.replace('.', '/')}.py"
        if source.is_file():
            code[named.key] = [name, code_digest(source, folder)]
        else:
            code[named.key] = [name, module_digest(module)]
    return code


class NamedFunction(NamedTuple):
    """A function that a YAML names."""

    key: str
    """Its place in the YAML, such as `filter_list.0.filter.0.function`."""
    name: str
    """`<folder>/module.function`."""
    function: Any


def named_functions(file: str | Path) -> Iterator[NamedFunction]:
    """The functions that a YAML names, without those under keys that run ids leave out."""
    with_functions = load_yaml(file)
    with_names = load_yaml(file, resolve_func=False)
    for key in with_names.keys() - UNNAMED:
        yield from _functions(with_functions[key], with_names[key], key)


def _functions(value: Any, named: Any, key: str) -> Iterator[NamedFunction]:
    """The functions in a value of a YAML, from it with functions and with their names."""
    if isinstance(named, dict):
        for name in named:
            yield from _functions(value[name], named[name], f"{key}.{name}")
    elif isinstance(named, list):
        for number in range(len(named)):
            yield from _functions(value[number], named[number], f"{key}.{number}")
    elif isinstance(named, str) and not (isinstance(value, str) and value == named):
        yield NamedFunction(key, named, value)
