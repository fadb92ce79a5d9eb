"""`metrics=counterfactual`: scores the routes that a run's noise proposes for each token, and writes their files."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from moe_lab.errors import ConfigError
from moe_lab.methods.roe import RoE
from moe_lab.metrics.counterfactual import ARRAYS, FILE, SCHEMA_VERSION, ScoredTokens, counterfactual
from moe_lab.results.atomic import write_atomically, write_json
from moe_lab.results.identity import versions
from moe_lab.runs.evaluation import Measure
from moe_lab.runs.evaluation.run_lm_eval import load_for

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.config.schema import Config
    from moe_lab.engine.forward.observer import Observer
    from moe_lab.engine.hf import Request
    from moe_lab.engine.route_scores import RouteScores
    from moe_lab.methods.method import Method
    from moe_lab.models.facts import ModelFacts
    from moe_lab.models.memory import ModelPool
    from moe_lab.results.samples import Log
    from moe_lab.runs.run import Run


class Counterfactual(Measure):
    """Scores the routes of all tokens (docs/counterfactual.md)."""

    of_baseline = False

    def check(self, method: Method, config: Config, facts: ModelFacts, tasks: TaskDict) -> None:
        """Allow only RoE with a clean history on given texts. Only there do all routes of a token cost the same."""
        if not isinstance(method, RoE):
            raise ConfigError(
                f"metrics=counterfactual scores the routes that RoE's noise proposes, and method={config.method.name} "
                "proposes none. Use method=roe."
            )
        settings = method.config
        wanted = {"cache": "clean", "weights": "clean", "adaptive": None, "include_clean": True}
        if other := [key for key, value in wanted.items() if getattr(settings, key) != value]:
            raise ConfigError(
                "metrics=counterfactual compares n routes of every token, the router's among them, that differ in this "
                f"token's experts alone. method.{other[0]}={getattr(settings, other[0])} computes others. Leave it out."
            )
        if method.logit_scale != 1:
            raise ConfigError(
                "metrics=counterfactual scores single routes, whose mean is what "
                f"method.logit_scale={method.logit_scale} scales. Leave it out."
            )
        if settings.n == 1:
            raise ConfigError("metrics=counterfactual: method.n=1 proposes no route. Raise it.")
        for name, task in tasks["tasks"].items():
            if task.get_config("output_type") == "generate_until":
                raise ConfigError(
                    f"metrics=counterfactual scores the tokens of given texts and right choices, and answers of {name} "
                    "are generated. Use a task such as toy_text, toy_choice or wikitext."
                )
        if config.model.tp_plan is not None:
            raise ConfigError(
                "metrics=counterfactual takes one process. Use model.device_map=auto for a large model."
            )

    def evaluations(self, method: Method) -> int:
        return 1

    def measure(self, run: Run, models: ModelPool, samples: Log, observer: Observer | None) -> None:
        if run.config.rerun or not run.has_metrics:
            write_counterfactual(run, models)


def write_counterfactual(run: Run, models: ModelPool) -> dict[str, Any]:
    """Score the routes of all tokens and write the run's files, counterfactual.json last. Returns its content.

    lm-eval has built the requests of the run's tasks. The model is loaded; stored answers are not used.
    """
    from moe_lab.engine.route_scores import text_routes
    from moe_lab.routing import GumbelTopK

    print(f"{run.folder.name}: the routes of each token", file=sys.stderr)
    start = time.perf_counter()
    requests = given_texts(run)
    with run.method.open(*load_for(run, models, None)) as lm:
        tokens = _tokens(text_routes(lm, requests))
        ensemble = lm.ensemble
    assert isinstance(ensemble.routing, GumbelTopK)
    content = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run.run_id,
        "commit": run.facts.commit,
        "versions": versions(),
        "n": ensemble.n,
        "temperatures": ensemble.routing.temperatures,
        "documents": len(requests),
        **counterfactual(tokens),
        "cost": {"seconds": time.perf_counter() - start},
    }
    _write_arrays(run, tokens)
    write_json(run.folder / FILE, content)
    return content


def given_texts(run: Run) -> list[tuple[str, Request]]:
    """(kind of request, request) of each document: its text, or its right answer after its prompt."""
    from moe_lab.engine.hf import Request
    from moe_lab.tasks.requests import right_request

    texts = []
    for task in run.tasks["tasks"].values():
        rolling = task.get_config("output_type") == "loglikelihood_rolling"
        documents: dict[Any, list[Any]] = {}
        for instance in task.instances:
            documents.setdefault(instance.doc_id, []).append(instance)
        for instances in documents.values():
            request = Request(right_request(run.config, task, instances))
            texts.append(("loglikelihood_rolling" if rolling else "loglikelihood", request))
    return texts


def _tokens(routes: list[RouteScores]) -> ScoredTokens:
    sizes = [len(one.confidence_T) for one in routes]
    return ScoredTokens(
        log_probs_Tn=np.concatenate([one.log_probs_Tn.numpy() for one in routes]),
        changed_Tn=np.concatenate([one.changed_Tn.numpy() for one in routes]),
        ensemble_T=np.concatenate([one.ensemble_T.numpy() for one in routes]),
        confidence_T=np.concatenate([one.confidence_T.numpy() for one in routes]),
        document_T=np.repeat(np.arange(len(routes)), sizes),
    )


def _write_arrays(run: Run, tokens: ScoredTokens) -> None:
    from safetensors.numpy import save

    arrays = {
        "log_probs": tokens.log_probs_Tn,
        "changed": tokens.changed_Tn,
        "ensemble": tokens.ensemble_T,
        "confidence": tokens.confidence_T,
        "document": tokens.document_T,
    }
    write_atomically(
        run.folder / ARRAYS, save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    )


MEASURE = Counterfactual()
