"""Runs that answer from a table of random numbers in place of a model, and the views
of stored results as text."""

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from moe_lab.config.schema import Config
from moe_lab.methods import get_method
from moe_lab.metrics.losses import losses
from moe_lab.metrics.stored import BY_DOCUMENT, FILE, FOLDER, SCHEMA_VERSION
from moe_lab.results.model import RunResult
from moe_lab.results.paired import paired
from moe_lab.results.reading import read_run
from moe_lab.results.statistics import score_interval
from moe_lab.results.versions import versions
from moe_lab.runs.summaries import summarize
from tests.support.command import FakeOutcome, FakeRun, FakeRuns
from tests.support.pages import texts, tree
from tests.support.stored_runs import generated_line, stored_run

DOCUMENTS = 24
METRIC = "exact_match,none"
RIGHT = {"base": 0.4, "roe": 0.75, "c3po": 0.6}
"""The share of right answers by method."""


class Task:
    """What summaries and expert metrics ask of a task."""

    def aggregation(self) -> dict[str, Any]:
        return {}


@dataclass
class GoldenRun(FakeRun):
    compared_runs: dict[str, "GoldenRun"] = field(default_factory=dict)
    tasks: Any = None

    @property
    def run_id(self) -> str:
        method = {
            key: value for key, value in asdict(self.config.method).items() if value is not None
        }
        seed = self.config.seed if self.config.method.name == "roe" else 0
        return sha256(
            f"{method['name']} {method.get('optimizer')} {self.task} {seed}".encode()
        ).hexdigest()

    @property
    def task(self) -> str:
        return str(self.config.task.name)

    @property
    def folder(self) -> Path:
        runs = Path(self.config.output_dir) / "runs"
        return runs / f"tiny-{self.config.method.name}-{self.task}-{self.run_id[:8]}"

    def stored(self) -> RunResult | None:
        return read_run(self.folder)

    def values(self, among: str = "") -> list[float]:
        """The score of each document: 1 with the method's share, with half
        of it under another routing."""
        share = RIGHT[self.config.method.name]
        if among:
            share /= 2
        generator = Random(f"{self.run_id} {among}")
        return [float(generator.random() < share) for _ in range(DOCUMENTS)]


class GoldenRuns(FakeRuns):
    """Every run writes results.json and its sample log, with the statistics of the package."""

    def prepare(self, config: Config) -> GoldenRun:
        base = replace(config, method=get_method("base").Config(name="base"), seed=0)
        compared = {"baseline": GoldenRun(base)} if config.method.name != "base" else {}
        run = GoldenRun(
            config, compared_runs=compared, tasks={"tasks": {str(config.task.name): Task()}}
        )
        run.done = run.stored() is not None
        return run

    def execute(self, run: GoldenRun, models: Any, *, begin: Any = None) -> FakeOutcome:
        if self.fails(run):
            raise self.errors[f"{run.config.method.name} {run.task}"]
        for golden_run in (*run.compared_runs.values(), run):
            if golden_run.stored() is None:
                write_run(golden_run)
            golden_run.done = True
        results = run.stored()
        assert results is not None
        return FakeOutcome(run, results, run.folder / "results.json")

    def fails(self, run: GoldenRun) -> bool:
        return f"{run.config.method.name} {run.task}" in self.errors

    def summarize(self, outcomes: Any, repeated: Any) -> Any:
        return summarize(outcomes, repeated)


def write_run(run: GoldenRun) -> None:
    config = run.config
    values = run.values()
    base = run.compared_runs.get("baseline")
    changes: dict[str, Any] = {
        "intervals": {run.task: {METRIC: score_interval(values)}},
        "seed": config.seed,
    }
    if config.method.name == "base":
        changes["seed"] = None
    if config.method.name == "roe":
        changes |= {
            "untuned": True,
            "roe": {"n": 4, "temperatures": [0.0, 0.1], "changed_fraction": 0.25},
        }
    if config.method.name == "c3po":
        oracle = config.method.optimizer == "oracle"
        changes["c3po"] = {
            "upper_bound": oracle,
            "epsilon": 0.5,
            "reference": {"questions_without": 3},
        }
    if base is not None:
        before = base.values()
        changes["paired"] = {run.task: {METRIC: paired(values, before).to_json()}}
        changes |= {"baseline": base.run_id, "base_value": sum(before) / len(before)}
    lines = [generated_line(i, (f"answer {value:.0f}", value)) for i, value in enumerate(values)]
    stored_run(
        Path(config.output_dir),
        run.run_id,
        lines,
        config.method.name,
        config={key: value for key, value in asdict(config.method).items() if value is not None},
        task=run.task,
        **changes | {"overrides": config.overrides},
    )
    if config.metrics == "expert":
        write_expert_metrics(run)


def write_expert_metrics(run: GoldenRun) -> None:
    def samples(among: str = "") -> dict[str, list[dict[str, Any]]]:
        scored = enumerate(run.values(among))
        return {run.task: [generated_line(i, ("", value)) for i, value in scored]}

    def lost(among: str) -> dict[str, Any]:
        losses_by_task = losses({run.task: Task()}, samples(), [samples(among)])
        tasks = {}
        for task, losses_by_metric in losses_by_task.items():
            tasks[task] = {metric: _plain(loss) for metric, loss in losses_by_metric.items()}
        return {"tasks": tasks}

    entropy = {"value": 3.5, "ci95": [3.4, 3.6], "counted": 3.4, "maximum": 4.0, "layers": []}
    content = {
        "run_id": run.run_id,
        "schema_version": SCHEMA_VERSION,
        "commit": None,
        "versions": versions(),
        "metric": METRIC,
        "documents": DOCUMENTS,
        "experts": [16],
        "top_k": [4],
        "tokens": {"all": 100},
        "load_balance": {"all": entropy, "prefill": None, "decode": None},
        "collaboration": {
            "all": entropy | {"value": 2.5, "ci95": [2.4, 2.6]},
            "prefill": None,
            "decode": None,
        },
        "capacity": {"least": lost("least"), "most": lost("most")},
        "specialization": lost("random"),
        "differences": {},
    }
    (run.folder / FILE).write_text(json.dumps(content))
    (run.folder / FOLDER).mkdir()
    (run.folder / FOLDER / BY_DOCUMENT).touch()


def _plain(loss: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in loss.items() if key != "scores"}


# What is compared


def views(output: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each file that shows results: Markdown, CSV, JSON,
    tables of pages, their LaTeX."""
    for file in sorted(output.rglob("*")):
        name = str(file.relative_to(output))
        if (
            name.startswith(("runs/", "pages/"))
            or not file.is_file()
            or file.suffix in (".png", ".svg")
        ):
            continue
        if file.suffix == ".html":
            yield f"{name}.txt", "\n".join(_tables(file)) + "\n"
            yield from (
                (f"{name}.{number}.tex", text) for number, text in enumerate(_latex(file), start=1)
            )
        elif file.suffix == ".json":
            yield name, "\n".join(_lines(json.loads(file.read_text()))) + "\n"
        else:
            yield name, file.read_text()


def _lines(content: dict[str, Any]) -> Iterator[str]:
    """A line for each key of a JSON file, and for each entry of a list of mappings."""
    for key, value in sorted(content.items()):
        is_list = isinstance(value, list) and value and isinstance(value[0], dict)
        yield from (
            f"{key}: {json.dumps(item, sort_keys=True)}" for item in (value if is_list else [value])
        )


def _tables(page: Path) -> Iterator[str]:
    for table in tree(page).xpath("//table"):
        yield from (f"## {text}" for text in texts(table.xpath("caption")))
        for row in table.xpath(".//tr"):
            yield " | ".join(texts(row.xpath("th|td"))).rstrip()


def _latex(page: Path) -> Iterator[str]:
    for link in tree(page).xpath("//a/@href[starts-with(., 'data:text/x-tex')]"):
        yield b64decode(link.partition("base64,")[2]).decode()


def normal(text: str, output: Path) -> str:
    """The text without paths of this machine, versions, remaining time,
    and digits that rounding decides."""
    text = text.replace(str(output), "<output>").replace(str(output.parent), "<folder>")
    for name, version in versions().items():
        text = text.replace(f'"{name}": "{version}"', f'"{name}": "<version>"')
        text = text.replace(f"{name} {version}", f"{name} <version>")
    text = re.sub(r"\d+\.\d{9,}(e-\d+)?", lambda digits: f"{float(digits[0]):.8g}", text)
    return re.sub(r", about .* left$", "", text, flags=re.MULTILINE)
