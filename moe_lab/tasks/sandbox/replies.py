"""HumanEval as a conversation: lm-eval's instruct prompt, and the function in an instruct model's
reply.

With a chat template an answer is a reply and no completion: it may open with a fence, say something
first, write the whole function again, or end in the middle of an explanation.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from moe_lab.results.code import versioned
from moe_lab.tasks.sandbox.programs import run_tests

# lm-eval's task humaneval_instruct, version 4.0
INSTRUCTION = (
    "Write a solution to the following problem and make sure that it passes the tests:\n"
    "```python\n{{ prompt }}\n```\n"
)
PREFIX = "Here is the completed function:\n```python\n{{ prompt }}\n"
"""The begin of the reply, which the model continues inside the fence."""
_FENCE = re.compile(
    r"^(?P<indent>[ \t]*(?:(?:[-*+]|\d+[.)])[ \t]+)?)(?:`{3,}|~{3,})[^`\n]*(?:\n|\Z)|```[\w+-]*\n?",
    re.MULTILINE,
)
"""A line of a fence, in a list or not, with all that is on it ("```python {.numbered}"); or a fence
within a line."""
_FUTURE = re.compile(
    r"^[ \t]*from[ \t]+__future__[ \t]+import[ \t]+(?:\([^)]*\)|[^\n]*)", re.MULTILINE
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_DEFINITIONS = (*_FUNCTIONS, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)


def in_chat(config: dict[str, Any]) -> dict[str, Any]:
    """A HumanEval task's configuration for an instruct model.

    Its first filter is ours (`extract_code`), its second is lm-eval's (`create_test`). lm-eval's
    stop words would end a reply that writes the function again at its `def`. So generation has
    none, and only lm-eval's filter cuts at them.
    """
    stops = config["generation_kwargs"]["until"]
    return {
        **config,
        "doc_to_text": INSTRUCTION,
        "gen_prefix": PREFIX,
        "generation_kwargs": {**config["generation_kwargs"], "until": []},
        "filter_list": [
            _filter("extract_code", run_extracted),
            _filter("create_test", partial(run_cut, stops)),
        ],
    }


def _filter(name: str, function: Callable) -> dict[str, Any]:
    """lm-eval's entry of a filter that is a function."""
    return {"name": name, "filter": [{"function": "custom", "filter_fn": function}]}


@versioned("run what lm-eval cuts from a reply", 1)
def run_cut(
    stops: list[str], responses: list[list[str]], documents: list[dict[str, Any]]
) -> list[list[str]]:
    """lm-eval filter: outcomes of what lm-eval takes from a reply, its text up to a stop word or a
    fence."""
    end = re.compile("|".join(re.escape(stop) for stop in [*stops, "```"]))
    cut = []
    for texts in responses:
        cut.append([end.split(text)[0] for text in texts])
    return run_tests(cut, documents)


@versioned("run the function in a reply", 1)
def run_extracted(responses: list[list[str]], documents: list[dict[str, Any]]) -> list[list[str]]:
    """lm-eval filter: outcomes of the functions that `completion` finds in replies."""
    extracted = []
    for texts, document in zip(responses, documents, strict=True):
        extracted.append([completion(document, text) for text in texts])
    return run_tests(extracted, documents)


def completion(document: dict[str, Any], reply: str) -> str:
    """The part of a reply that completes the prompt's function; the whole reply if none does.

    Fences divide a reply into parts. The first part counts that continues the prompt or writes the
    function again, and whose function has a body: a stub (`pass`, `...`, `raise
    NotImplementedError`) is passed over. Lines at its end that are no Python are left out, and so
    are those after its last definition, for example calls of the function. Definitions of other
    parts are added if the function needs them. `from __future__` is left out, since it may only
    begin a program.
    """
    parts = _parts(_FUTURE.sub("", reply))
    for number, part in enumerate(parts):
        completed = _completed(document, part)
        if completed is not None:
            others = parts[:number] + parts[number + 1 :]
            return completed + _missing_definitions(document["prompt"] + completed, others)
    return reply


def _parts(reply: str) -> list[str]:
    """The texts between fences. A fence in a list is indented, and so are the lines after it: not
    here."""
    parts = []
    start = 0
    indent = 0
    for fence in _FENCE.finditer(reply):
        parts.append(_unindented(reply[start : fence.start()], indent))
        start = fence.end()
        indent = len(fence["indent"] or "")
    parts.append(_unindented(reply[start:], indent))
    return parts


def _unindented(text: str, width: int) -> str:
    """A text without the first `width` blanks of each line."""
    if not width:
        return text
    return re.sub(rf"^[ \t]{{0,{width}}}", "", text, flags=re.MULTILINE)


def _completed(document: dict[str, Any], part: str) -> str | None:
    """The text after the prompt up to the last definition of a part; None if it has no function
    with a body."""
    prompt = document["prompt"]
    for start in ("", "\n"):  # a continuation of the last line; lines of their own
        lines = part.split("\n")
        while lines:
            source = prompt + start + "\n".join(lines)
            last_line = _last_line(source, document["entry_point"])
            if last_line is not None:
                program = "\n".join(source.split("\n")[:last_line])
                return program[len(prompt) :]
            lines.pop()
    return None


def _missing_definitions(source: str, others: list[str]) -> str:
    """The definitions of other parts, as text, of names that a program uses and does not have;
    empty if it needs none."""
    known: dict[str, str] = {}
    for part in others:
        for name, text in _definitions(part):
            known.setdefault(name, text)
    added = ""
    while True:
        missing = [name for name in _undefined(source + added) if name in known]
        if not missing:
            return added
        # what a definition needs is before it: a decorator is called when its function is defined
        added = f"\n\n{known[missing[0]]}\n{added}"


def _definitions(part: str) -> list[tuple[str, str]]:
    """(name, text) of what a part defines or imports; empty if it is no Python."""
    lines = part.split("\n")
    definitions = []
    for node in _statements(part) or []:
        if not isinstance(node, _DEFINITIONS):
            continue
        first_line = node.lineno
        for decorator in getattr(node, "decorator_list", []):
            first_line = min(first_line, decorator.lineno)
        text = "\n".join(lines[first_line - 1 : node.end_lineno])
        for name in _bound_by([node]):
            definitions.append((name, text))
    return definitions


def _undefined(source: str) -> list[str]:
    """Names that a program reads and never binds."""
    nodes = list(ast.walk(ast.parse(source)))
    bound = _bound_by(nodes)
    undefined = []
    for node in nodes:
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        name = node.id
        if name not in bound and name not in undefined and not hasattr(builtins, name):
            undefined.append(name)
    return undefined


def _bound_by(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that these nodes bind, without the nodes below them."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, _FUNCTIONS):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name is not None:
            names.add(node.name)
    return names


def _statements(source: str) -> list[ast.stmt] | None:
    """The statements of a source; None if it is no Python."""
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _last_line(source: str, name: str) -> int | None:
    """The last line of a function and of the definitions after it, from 1.

    None if the source is no Python, or if its last function of this name is a stub.
    """
    body = _statements(source) or []
    place = None
    for number, statement in enumerate(body):
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            place = number
    if place is None:
        return None
    function, *following = body[place:]
    assert isinstance(function, ast.FunctionDef)
    if _is_stub(function):
        return None
    last: ast.stmt = function
    for statement in following:
        if not isinstance(statement, _DEFINITIONS):
            break
        last = statement
    return last.end_lineno


def _is_stub(function: ast.FunctionDef) -> bool:
    """Whether a function does nothing: no statement but a docstring, `pass`, `...` or `raise
    NotImplementedError`."""
    return all(_does_nothing(statement) for statement in function.body)


def _does_nothing(statement: ast.stmt) -> bool:
    """Whether a statement is `pass`, a constant such as a docstring, or `raise
    NotImplementedError`."""
    if isinstance(statement, ast.Pass):
        return True
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Raise) and statement.exc is not None:
        raised = statement.exc
        if isinstance(raised, ast.Call):
            raised = raised.func
        return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
    return False
