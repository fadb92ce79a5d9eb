"""A C3PO run's folder with traces, made by hand."""

import hashlib
import json
from pathlib import Path
from typing import Any

from moe_lab.reports.figures.stored_traces import StoredTraces, read_traces
from moe_lab.results.model import RunResult
from tests.support.stored_results import changed, results_of

BEFORE = [[[0.5, 0.3, 0.15, 0.05], [0.4, 0.3, 0.2, 0.1]]]
AFTER = [[[0.5, 0.15, 0.3, 0.05], [0.05, 0.3, 0.2, 0.45]]]
"""[tokens][layers][experts]; two of four experts are taken: layer 3 swaps its second for its third,
layer 4 its first for its fourth."""
NEIGHBOURS = [
    {
        "reference": 7,
        "text": "Question: near?\nAnswer:",
        "distance": 0.5,
        "weight": 0.75,
        "pathway": AFTER,
    },
    {"reference": 9, "text": "far " * 200, "distance": 1.25, "weight": 0.25, "pathway": BEFORE},
]


def scores_of(states: str) -> list[list[float]]:
    """Log-likelihoods of " A" and " B": the letter of each state's answer has the higher one."""
    return [[-1.0 if state == "A" else -2.0, -1.5] for state in states]


def traced_run(
    folder: Path, answers: list[str], core_experts: int | None = None, **trace: Any
) -> RunResult:
    """Write `traces.jsonl` and the samples of a run whose right answer is always A;
    returns its result.

    `answers` has for each question the answer in each state: "BAA" is right after the first step.
    """
    folder.mkdir(parents=True)
    samples = []
    traces = []
    for number, states in enumerate(answers):
        prompt = f"Question: {number}?\nAnswer:"
        arguments = {
            f"gen_args_{i}": {"arg_0": prompt, "arg_1": f" {x}"} for i, x in enumerate("AB")
        }
        line = {
            "doc_id": number,
            "filter": "none",
            "metrics": [],
            "target": "0",
            "arguments": arguments,
        }
        samples.append(line)
        line = {
            "prompt": hashlib.sha256(prompt.encode()).hexdigest(),
            "layers": [3, 4],
            "before": BEFORE,
            "after": AFTER,
            "core": [[[0, 1, 2, 3]] * 2],
            "neighbours": NEIGHBOURS,
            "losses": [2.0 - 0.5 * state for state in range(len(states))],
            "continuations": [" A", " B"],
            "scores": scores_of(states),
        }
        traces.append(line | trace)
    traces.reverse()  # as questions are answered, not as documents are numbered
    (folder / "traces.jsonl").write_text("".join(json.dumps(line) + "\n" for line in traces))
    (folder / "samples_t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in samples))
    result = c3po_results(core_experts, samples={"t": list(range(len(answers)))})
    return RunResult(result.content, folder)


def c3po_results(core_experts: int | None = None, **changes: Any) -> RunResult:
    """A results.json of C3PO on four experts, two of them taken."""
    c3po = {"core_experts": core_experts, "flops_per_sample": 4e9, "flops_plain_per_sample": 1e9}
    model = {"name": "tiny", "top_k": 2, "experts": 4}
    method = {"name": "c3po", "config": {"name": "c3po", "core_experts": core_experts}}
    results = results_of(method="c3po", **{"model": model, "c3po": c3po} | changes)
    return changed(results, moe_lab=results["moe_lab"] | {"method": method})


def run_of(folder: Path, answers: list[str], **changes: Any) -> StoredTraces:
    return read_traces(traced_run(folder, answers, **changes))
