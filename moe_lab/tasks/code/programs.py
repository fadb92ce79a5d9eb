"""HumanEval's programs and their pass@1."""

from __future__ import annotations

from typing import Any

from moe_lab.tasks.sandbox.programs import PASSED, run_programs
from moe_lab.tasks.versions import versioned


def program(document: dict[str, Any], completion: str) -> str:
    """The prompt with the model's completion, then the problem's tests."""
    return f"{document['prompt']}{completion}\n{document['test']}\ncheck({document['entry_point']})"


@versioned("code.run_tests", 1)
def run_tests(responses: list[list[str]], documents: list[dict[str, Any]]) -> list[list[str]]:
    """lm-eval filter: the outcome of every response's program ("passed", "failed: AssertionError", ...).

    It gets all responses of a run, whose programs run in parallel.
    """
    pairs = zip(responses, documents, strict=True)
    outcomes = iter(run_programs([program(document, text) for texts, document in pairs for text in texts]))
    return [[next(outcomes) for _ in texts] for texts in responses]


@versioned("code.score", 1)
def score(document: dict[str, Any], results: list[list[str]]) -> dict[str, float]:
    """lm-eval `process_results`: the share of a document's responses that passed, which is pass@1."""
    (outcomes,) = results
    return {"pass@1": sum(outcome == PASSED for outcome in outcomes) / len(outcomes)}
