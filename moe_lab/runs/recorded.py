"""`metrics_from=`: expert metrics from the routes that a serving engine recorded. Loads no weights."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import ConfigError, ModelError
from moe_lab.metrics.recorded import KEY, Recorded, Routers, count_recorded, read_recorded
from moe_lab.metrics.registry import intervention_metrics
from moe_lab.metrics.stored import COUNTS, FILE, FOLDER, without_arrays, write_arrays
from moe_lab.results.atomic import write_json
from moe_lab.results.folder import RunFolder
from moe_lab.results.identity import SCHEMA_VERSION, folder_name, run_id, versions
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import NO_COMPARISONS
from moe_lab.runs.evaluation.expert import entropies, header, write_counts

if TYPE_CHECKING:
    from moe_lab.config.schema import Config
    from moe_lab.models.facts import ModelFacts

LEFT_OUT = (
    "need the model's weights and a task, and are left out: the routes were recorded by a serving engine."
)


def measure_recorded(configs: Sequence[Config]) -> int:
    """Measure recorded routes, print their table and write their page. Returns the exit code."""
    from moe_lab.reports.figures import write_run_figures
    from moe_lab.reports.measures import view_of
    from moe_lab.reports.pages.runs_page import write_runs_page

    results = [_measured(config) for config in configs]
    page = Path(configs[0].output_dir) / "report.html"
    for result in results:
        write_run_figures(result, [])
    write_runs_page(results, page, NO_COMPARISONS, [])
    view = view_of("expert")
    assert view is not None
    view.print(results, NO_COMPARISONS)
    labels = " and ".join(metric.label for metric in intervention_metrics().values())
    print(f"{labels} {LEFT_OUT}")
    print(page)
    for result in results:
        print(result.stored_in / FILE)
    return 0


def _measured(config: Config) -> RunResult:
    from moe_lab.models.facts import model_facts
    from moe_lab.models.identity import model_identity
    from moe_lab.models.source import model_source

    _check(config)
    facts = model_facts(config.model, dtype=config.dtype, device=config.device, offline=config.offline)
    if not facts.moe_layers:
        raise ModelError(
            f"{KEY}={config.metrics_from}: {facts.name} has no routers. Give the model that was served."
        )
    requests = read_recorded(str(config.metrics_from), routers_of(config))
    model = model_identity(model_source(config.model), config.model)
    content = {"kind": "recorded", "model": model, "commit": facts.commit, "routes": _digest(requests)}
    digest, name = run_id(content), Path(str(config.metrics_from)).stem
    folder = (
        Path(config.output_dir) / "runs" / folder_name(config.model.name, "recorded", name, digest=digest)
    )
    store = RunFolder(folder, digest)
    with store.held(), store.status():
        _write(folder, digest, facts, requests)
        block = _block(config, facts, digest, name)
        write_json(folder / "results.json", {"results": {}, "moe_lab": block})
    return RunResult({"results": {}, "moe_lab": block}, folder)


def _check(config: Config) -> None:
    """Raise ConfigError for keys that contradict recorded routes or have no effect on them."""
    typed = {text.lstrip("+").partition("=")[0].partition(".")[0] for text in config.overrides}
    if config.metrics != "expert" or config.metrics_from is None:
        raise ConfigError(
            f"{KEY}={config.metrics_from} and metrics={config.metrics}: recorded routes are measured by "
            "metrics=expert. Give both."
        )
    if config.method.name != "base":
        raise ConfigError(
            f"{KEY}={config.metrics_from} has the model's own routes, and method={config.method.name} routes "
            "otherwise. Use method=base."
        )
    if unread := sorted(typed & {"task", "limit", "samples", "seed", "seeds", "tuning", "gen_kwargs"}):
        raise ConfigError(f"{unread[0]}= has no effect with {KEY}: nothing is asked. Leave it out.")


def routers_of(config: Config) -> Routers:
    """The routers of a model, from its configuration alone."""
    from moe_lab.methods.finetune_freeze.parameter_groups import empty_model
    from moe_lab.models.source import load_config
    from moe_lab.routing import find_routers

    architecture = load_config(config.model, offline=config.offline)
    text = architecture.get_text_config()
    found = find_routers(empty_model(architecture))
    places = [int(re.findall(r"\.(\d+)\.", router.name)[-1]) for router in found]
    family = found[0].family
    return Routers(
        experts=[family.num_experts(text)] * len(found),
        top_k=family.experts_per_token(text),
        places=places,
        layers=text.num_hidden_layers,
    )


def _digest(requests: Sequence[Recorded]) -> str:
    """SHA-256 of the routes, the same for every form of the file."""
    content = hashlib.sha256()
    for request in requests:
        content.update(f"{request.index_TLK.shape} {request.prompt}".encode())
        content.update(request.index_TLK.tobytes())
    return content.hexdigest()


def _write(folder: Path, digest: str, facts: ModelFacts, requests: Sequence[Recorded]) -> None:
    """Write the metrics' files, expert_metrics.json last."""
    start = time.perf_counter()
    experts = [facts.experts] * facts.moe_layers
    counts = count_recorded(requests, experts)
    own = header(digest, facts.commit, None, counts, [facts.top_k] * facts.moe_layers)
    cost = {"asked_again": 0, "asking_again_seconds": 0.0, "counting_seconds": time.perf_counter() - start}
    found, arrays = without_arrays(own | entropies(counts))
    write_counts(folder / FOLDER / COUNTS, counts)
    write_arrays(folder / FOLDER, arrays)
    write_json(
        folder / FILE, found | dict.fromkeys(intervention_metrics()) | {"cost": cost, "differences": {}}
    )


def _block(config: Config, facts: ModelFacts, digest: str, name: str) -> dict[str, Any]:
    """The `moe_lab` part of results.json: a run without documents and scores."""
    model = {key: getattr(facts, key) for key in ("name", "path", "revision", "commit", "family", "dtype")}
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": digest,
        "status": "success",
        "partial": False,
        "model": model | {key: getattr(facts, key) for key in ("moe_layers", "experts", "top_k")},
        "method": {"name": config.method.name, "config": asdict(config.method)},
        "task": {"name": name, "tasks": [], "metric": None},
        "seed": None,
        "overrides": list(config.overrides),
        "versions": versions(),
        "samples": {},
        "cost": {},
        "intervals": {},
    }
