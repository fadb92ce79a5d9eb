"""A hook of mkdocs: fills docs/reference.md with the docstrings of the public Python interface.

The page lists every name of `moe_lab.__all__`. It also lists the classes that these functions
return and take.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

PAGE = "reference.md"
OTHERS = {
    "moe_lab.runs.results": ["Results"],
    "moe_lab.runs.plan": ["Plan"],
    "moe_lab.api.compare": ["Compared"],
    "moe_lab.api.language_model": ["LanguageModel", "GeneratedTexts"],
    "moe_lab.routing.replay": ["Replay"],
    "moe_lab.api.compare_routes": ["ComparedRoutes"],
    "moe_lab.routing.hook": ["Router"],
    "moe_lab.routing.rules": ["Routing"],
}
"""Classes of returned objects and of arguments, by module."""
DOCUMENTED = {name for names in OTHERS.values() for name in names}
WIDTH = 100
"""Characters of a signature on one line."""
INDENT = "    "


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Called by mkdocs for each page."""
    return markdown + "\n" + reference() if page.file.src_uri == PAGE else markdown


def reference() -> str:
    """The docstrings as Markdown, one section for each name."""
    for library in (
        "torchao",
        "torch.utils._pytree",
    ):  # notices about kernels that this machine does not need
        logging.getLogger(library).setLevel(logging.ERROR)
    import moe_lab

    public = [(name, getattr(moe_lab, name)) for name in sorted(moe_lab.__all__, key=str.lower)]
    others = [
        (name, getattr(import_module(module), name)) for module in OTHERS for name in OTHERS[module]
    ]
    parts = ["## Names of moe_lab", *(_section(*each, called=True) for each in public)]
    return (
        "\n\n".join([*parts, "## Objects", *(_section(*each, called=False) for each in others)])
        + "\n"
    )


def _section(name: str, found: Any, called: bool) -> str:
    parts = [f"### {name}", signature(f"moe_lab.{name}", found) if called else ""]
    parts.append(from_docstring(inspect.getdoc(found) or ""))
    if inspect.isclass(found):
        bases = [base.__name__ for base in found.__bases__ if base.__name__ in DOCUMENTED]
        parts += [f"It has the methods of [{base}](#{base.lower()})." for base in bases]
        for method, function in _methods(found):
            parts += [f"#### {name}.{method}", signature(f"{name}.{method}", function, bound=True)]
            parts.append(from_docstring(inspect.getdoc(function) or ""))
    return "\n\n".join(part for part in parts if part)


def _methods(found: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of a class that have a docstring."""
    for name, member in vars(found).items():
        function = member.fget if isinstance(member, property) else member
        public = not name.startswith("_") or name == "__call__"
        if public and inspect.isfunction(function) and function.__doc__:
            yield name, member


def signature(shown: str, found: Any, bound: bool = False) -> str:
    """A call as a block of Python. A long call has one argument on a line. A property is its name.

    Args:
        bound: whether the first parameter is the object.
    """
    if isinstance(found, property):
        return f"```python\n{shown}\n```"
    whole = inspect.signature(found)
    parameters = list(whole.parameters.values())[bound:]
    text = f"{shown}{_plain(whole.replace(parameters=parameters))}"
    if len(text) > WIDTH:
        inside, _, after = _plain(whole.replace(parameters=parameters)).rpartition(")")
        lines = _arguments(inside.removeprefix("("))
        text = f"{shown}(\n" + "".join(f"{INDENT}{line},\n" for line in lines) + f"){after}"
    return f"```python\n{text}\n```"


def _plain(found: inspect.Signature) -> str:
    """Annotations are texts, which `inspect` puts into quotes."""
    unquoted = re.sub(r"ForwardRef\(('[^']*')\)", r"\1", str(found))
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", unquoted).replace(" -> None", "")


def _arguments(text: str) -> list[str]:
    """The arguments of a signature, split at commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def from_docstring(text: str) -> str:
    """A docstring as Markdown: `Args:` becomes a list, and indented examples blocks of Python."""
    lines, found = text.splitlines(), []
    at = 0
    while at < len(lines):
        end = at + 1
        if lines[at] == "Args:":
            while end < len(lines) and lines[end].startswith(INDENT):
                end += 1
            found += ["", *_listed(lines[at + 1 : end]), ""]
        elif lines[at].startswith(INDENT):
            while end < len(lines) and (lines[end].startswith(INDENT) or not lines[end]):
                end += 1
            code = [line.removeprefix(INDENT) for line in lines[at:end]]
            found += ["```python", *"\n".join(code).rstrip().splitlines(), "```", ""]
        else:
            found.append(lines[at])
        at = end
    return "\n".join(found).strip()


def _listed(lines: list[str]) -> list[str]:
    """`name: what it is` as points of a list; what is indented further continues a point."""
    points: list[str] = []
    for line in lines:
        own = line.removeprefix(INDENT)
        if own.startswith(" ") and points:
            points[-1] += f" {own.strip()}"
        else:
            name, _, what = own.partition(":")
            points.append(f"- **{name}**:{what}")
    return points
