"""HumanEval as a conversation: lm-eval's instruct prompt, and the function in an instruct model's reply.

With a chat template an answer is a reply and no completion: it may open with a fence, say something first, write the
whole function again, or end in the middle of an explanation.
"""

from __future__ import annotations

import ast
import re
from functools import partial
from itertools import takewhile
from typing import Any

from moe_lab.tasks.sandbox.programs import run_tests

# lm-eval's task humaneval_instruct, version 4.0
INSTRUCTION = (
    "Write a solution to the following problem and make sure that it passes the tests:\n"
    "```python\n{{ prompt }}\n```\n"
)
PREFIX = "Here is the completed function:\n```python\n{{ prompt }}\n"
"""The begin of the reply, which the model continues inside the fence."""
_FENCE = re.compile(r"```[\w+-]*\n?")
_DEFINITIONS = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)


def in_chat(config: dict[str, Any]) -> dict[str, Any]:
    """A HumanEval task's configuration for an instruct model.

    Its first filter is ours (`extract_code`), its second is lm-eval's (`create_test`). lm-eval's stop words would end a
    reply that writes the function again at its `def`. So generation has none, and only lm-eval's filter cuts at them.
    """
    stops = config["generation_kwargs"]["until"]
    filters = {"extract_code": run_extracted, "create_test": partial(run_cut, stops)}
    return {
        **config,
        "doc_to_text": INSTRUCTION,
        "gen_prefix": PREFIX,
        "generation_kwargs": {**config["generation_kwargs"], "until": []},
        "filter_list": [
            {"name": name, "filter": [{"function": "custom", "filter_fn": function}]}
            for name, function in filters.items()
        ],
    }


def run_cut(stops: list[str], responses: list[list[str]], documents: list[dict[str, Any]]) -> list[list[str]]:
    """lm-eval filter: outcomes of what lm-eval takes from a reply, its text up to a stop word or a fence."""
    end = re.compile("|".join(map(re.escape, [*stops, "```"])))
    return run_tests([[end.split(text)[0] for text in texts] for texts in responses], documents)


def run_extracted(responses: list[list[str]], documents: list[dict[str, Any]]) -> list[list[str]]:
    """lm-eval filter: outcomes of the functions that `completion` finds in replies."""
    pairs = zip(responses, documents, strict=True)
    return run_tests([[completion(document, text) for text in texts] for texts, document in pairs], documents)


def completion(document: dict[str, Any], reply: str) -> str:
    """The part of a reply that completes the prompt's function; the whole reply if none does.

    Fences divide a reply into parts. The first part counts that continues the prompt or writes the function again.
    Lines at its end that are no Python are left out, and so is what follows the definitions, examples of calls say.
    """
    prompt = document["prompt"]
    for part in _FENCE.split(reply):
        for start in ("", "\n"):  # a continuation of the last line; lines of their own
            lines = part.split("\n")
            while lines:
                source = prompt + start + "\n".join(lines)
                if (last := _last_line(source, document["entry_point"])) is not None:
                    return "\n".join(source.split("\n")[:last])[len(prompt) :]
                lines.pop()
    return reply


def _last_line(source: str, name: str) -> int | None:
    """The last line of a function and of the definitions after it, from 1.

    None if the source is no Python, or if its last function of this name has no body but a docstring.
    """
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for i in reversed(range(len(body))):
        node = body[i]
        if isinstance(node, ast.FunctionDef) and node.name == name:
            if len(node.body) == (ast.get_docstring(node) is not None):
                return None
            return list(takewhile(lambda node: isinstance(node, _DEFINITIONS), body[i:]))[-1].end_lineno
    return None
