"""Run folders made by hand: results.json and sample logs, of generated answers and of choices."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moe_lab.results.model import RunResult
from tests.support.stored_results import block_of

Given = tuple[Any, float]
"""An answer, or the log-probabilities of the choices, and the value of its metric."""
CHOICES = (" red", " green", " blueish")


def generated_line(number: int, reply: Given, prompt: str = "Question") -> dict[str, Any]:
    """A line of a sample log with a generated answer."""
    text, value = reply
    return {
        "doc_id": number,
        "target": f"target {number}",
        "arguments": {"gen_args_0": {"arg_0": f"{prompt} {number}", "arg_1": {"until": []}}},
        "resps": [[text]],
        "filter": "none",
        "metrics": ["exact_match"],
        "exact_match": value,
    }


def choice_line(number: int, reply: Given) -> dict[str, Any]:
    """A line of a sample log with the log-probabilities of CHOICES."""
    scores, value = reply
    arguments = {
        f"gen_args_{i}": {"arg_0": "Which?", "arg_1": choice} for i, choice in enumerate(CHOICES)
    }
    return {
        "doc_id": number,
        "target": "0",
        "arguments": arguments,
        "resps": [[[str(score), "False"]] for score in scores],
        "filter": "none",
        "metrics": ["acc"],
        "acc": value,
    }


def stored_run(
    output: Path,
    run_id: str,
    lines: Sequence[dict[str, Any]],
    method: str = "roe",
    baseline: str | None = None,
    config: dict[str, Any] | None = None,
    task: str = "t",
    base_value: float = 0.5,
    **changes: Any,
) -> RunResult:
    """A run of one task in `<output>/runs/`, with results.json and its sample log."""
    metric = f"{lines[0]['metrics'][0]},none"
    values = [line[metric.partition(",")[0]] for line in lines]
    value = sum(values) / len(values)
    block = block_of(method, task, metric, [line["doc_id"] for line in lines]) | {
        "run_id": run_id,
        "model": {"name": "tiny", "commit": None, "identified_by": "content"},
        "method": {"name": method, "config": config or {"name": method}},
        "seed": None if method == "base" else 0,
        "overrides": [f"method={method}", f"task={task}"],
        "intervals": {task: {metric: [value - 0.1, value + 0.1]}},
        "cost": {
            "wall_seconds": 2.5,
            "tokens_in": 100,
            "peak_memory_bytes": 2**30,
            "device": "cpu",
        },
    }
    if baseline is not None:
        block["baseline"] = {"run_id": baseline, "results": {task: {metric: base_value}}}
    results = {"results": {task: {"alias": task, metric: value}}, "moe_lab": block | changes}
    folder = output / "runs" / f"tiny-{method}-{task}-{run_id[:8]}"
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (folder / f"samples_{task}.jsonl").write_text(text, encoding="utf-8")
    return RunResult(results, folder)


def pair_of_runs(
    output: Path,
    before: Sequence[Given],
    after: Sequence[Given],
    of_choices: bool = False,
    **changes: Any,
) -> tuple[RunResult, RunResult]:
    """A run of the base model and a run of RoE that is compared with it;
    `changes` go to RoE's block."""
    line = choice_line if of_choices else generated_line
    base_lines = [line(number, reply) for number, reply in enumerate(before)]
    roe_lines = [line(number, reply) for number, reply in enumerate(after)]
    base = stored_run(output, "b" * 64, base_lines, "base")
    roe = stored_run(output, "a" * 64, roe_lines, baseline="b" * 64, **changes)
    return base, roe
