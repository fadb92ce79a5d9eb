"""lm-eval over a run's answers.

The model is loaded for the first answer that is missing in the log.
"""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate
from lm_eval.tasks.manager import TaskDict

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_message
from moe_lab.engine.engine import KVEngine
from moe_lab.engine.forward.forward import Observer, observed
from moe_lab.engine.hf import Request
from moe_lab.engine.lm import EngineLM
from moe_lab.methods.method import Context, TrainingMethod
from moe_lab.models.auto_class import experts_option
from moe_lab.models.distributed import is_split, num_processes
from moe_lab.models.facts import LoadedModel
from moe_lab.models.memory import ModelPool, reset_peak_memory, weight_bytes
from moe_lab.models.tokenizer import prompt_tokenizer
from moe_lab.models.transformers_internals import experts_of
from moe_lab.results.response_log import ResponseLog
from moe_lab.results.samples import Log
from moe_lab.runs.distributed import free_on_all_ranks, load_on_all_ranks
from moe_lab.runs.evaluation.lms import RecordedLM
from moe_lab.runs.evaluation.shared_lm import SharedLM
from moe_lab.runs.evaluation.split_lm import split_lm
from moe_lab.runs.run import Run
from moe_lab.tasks.judges.judging import judging
from moe_lab.tasks.lm_eval_versions.documents import evaluated_documents
from moe_lab.tasks.lm_eval_versions.logged_samples import logged_samples
from moe_lab.tasks.metric_boundaries.boundary import MetricFailure
from moe_lab.tasks.metric_errors import metric_failures, without_failed_values
from moe_lab.tasks.requests import reseed
from moe_lab.tasks.sandbox.programs import unconfined

logger = logging.getLogger("moe_lab")

ROUNDING_EXAMPLES = 32
"""Stored answers of each task that are computed again to measure rounding."""


@dataclass(frozen=True)
class Evaluated:
    """What lm-eval says of the answers to some tasks."""

    content: dict[str, Any]
    """The dictionary of `lm_eval.evaluate`, without its samples."""
    samples: Log
    failures: list[MetricFailure]
    """The metrics that could not be computed."""

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """lm-eval's scores by task."""
        return self.content["results"]


def evaluate_answers(
    run: Run,
    models: ModelPool,
    log: ResponseLog,
    observer: Observer | None = None,
) -> Evaluated:
    """The results of lm-eval over the log's answers.

    Missing answers are computed under the policy of `observer`. All processes of torchrun answer a
    part, or compute a part of each layer. With an observer, which sees the passes of one process
    only, process 0 answers alone.
    """
    config = run.config
    together = num_processes() > 1 and observer is None
    before = len(log)
    with ExitStack() as opened:

        def open_model() -> Any:
            return _opened_lm(run, models, log, observer, opened, together=together)

        def free_model() -> None:
            opened.close()
            lm.forget_model()
            free_on_all_ranks(models)

        lm = RecordedLM(
            log, open_model, lambda: prompt_tokenizer(config), config.apply_chat_template
        )
        with judging(run.judges, run.folder, config.rerun, free_model):
            evaluated = evaluate_tasks(config, run.tasks, lm, _chosen_documents(run))
    is_rounded = config.method.name == "base" and run.facts.dtype != "float32"
    if is_rounded and len(log) > before and not together:
        log.spend(_rounding(run, models, evaluated.samples))
    return evaluated


def _opened_lm(
    run: Run,
    models: ModelPool,
    log: ResponseLog,
    observer: Observer | None,
    opened: ExitStack,
    *,
    together: bool,
) -> Any:
    """The LM of the run's method on its model, which is loaded. `opened` closes it.

    Args:
        together: whether the other processes work with it (`SharedLM`, `SplitLM`).

    The log keeps the cost of loading, and where the model is.
    """
    config = trained_config(run, models)
    loaded = load_on_all_ranks(config, models) if together else models.get(config)
    loading = {
        "load_seconds": loaded.load_seconds,
        "peak_weight_bytes": weight_bytes(loaded.model),
    }
    log.spend(loading, _environment(loaded))
    logger.info("model on %s, loaded in %.1f s", loaded.device, loaded.load_seconds)
    reset_peak_memory(loaded.device)
    context = Context(config=config, folder=run.folder)
    opening = run.method.open(loaded, context)
    if together and is_split(config.model):
        lm: Any = opened.enter_context(split_lm(opening, config))
    else:
        lm = opened.enter_context(opening)
    log.keep_session_info(lm.session_info)
    if observer is not None:
        opened.enter_context(observed(lm, observer))
    if together and not is_split(config.model):
        return SharedLM(lm, config, log)
    return lm


def _environment(loaded: LoadedModel) -> dict[str, Any]:
    """The device and implementations, for the record: they are not part of a run's identity."""
    config = loaded.model.config
    experts_implementation = experts_of(config.get_text_config())
    if experts_implementation and not experts_option(config, experts_implementation):
        experts_implementation = None  # the family computes its experts in one way
    return {
        "device": str(loaded.device),
        "experts_implementation": experts_implementation,
        "attn_implementation": getattr(config, "_attn_implementation", None),
    }


def _chosen_documents(run: Run) -> dict[str, list[int] | None]:
    """The document numbers of each task.

    None for a task that is evaluated whole, so that lm-eval need not search each document.
    """
    chosen: dict[str, list[int] | None] = {}
    for name, numbers in run.samples.items():
        is_whole = len(numbers) >= len(evaluated_documents(run.tasks["tasks"][name]))
        chosen[name] = None if is_whole else numbers
    return chosen


def _rounding(run: Run, models: ModelPool, samples: Log) -> dict[str, float]:
    """The largest difference of a scored text's log-likelihood, in nats, at another batch size.

    Under the key `peak_rounding`, 0 without a scored text; empty for a model without a `KVEngine`.
    It is the bound within which results of the dtype are equal (`moe_lab.results.rounding`). Up to
    ROUNDING_EXAMPLES of the stored answers of each task are computed once more. Tasks of choices or
    of generated texts need no bound: changed answers are counted.
    """
    differences = [0.0]
    with opened_again(run, models) as lm:
        if not isinstance(lm.engine, KVEngine):
            return {}
        budget = replace(lm.budget, sequences=8 if lm.budget.sequences == 1 else 1)
        lm.budget = budget
        lm.engine.budget = budget
        for name, task in run.tasks["tasks"].items():
            if task.OUTPUT_TYPE not in ("loglikelihood", "loglikelihood_rolling"):
                continue
            stored: list[float] = []
            requests: list[Request] = []
            for line in samples[name][:ROUNDING_EXAMPLES]:
                stored += [_likelihood(response) for [response] in line["resps"]]
                requests += [Request(tuple(arguments)) for arguments in line["arguments"]]
            answers: dict[int, Any] = {}
            lm.answer(task.OUTPUT_TYPE, requests, answers.__setitem__)
            for index, answer in answers.items():
                differences.append(abs(_likelihood(answer) - stored[index]))
    return {"peak_rounding": max(differences)}


def _likelihood(answer: Any) -> float:
    """The log-likelihood in an answer: of a continuation (log-likelihood, whether greedy), or of a
    text the number itself."""
    return float(answer[0] if isinstance(answer, tuple | list) else answer)


def opened_again(run: Run, models: ModelPool) -> AbstractContextManager[EngineLM]:
    """The run's method on its model, to ask again what is answered already."""
    config = trained_config(run, models)
    return run.method.open(models.get(config), Context(config=config))


def trained_config(run: Run, models: ModelPool) -> Config:
    """The run's configuration with the model that answers. Trains the model first if necessary."""
    if isinstance(run.method, TrainingMethod):
        return run.method.resolve_model(run.config, run.facts, partial(free_on_all_ranks, models))
    return run.config


def evaluate_tasks(
    config: Config, tasks: TaskDict, lm: LM, samples: dict[str, Any] | None
) -> Evaluated:
    """The results of `lm_eval.evaluate` for the tasks.

    Args:
        samples: document numbers by task; None for all documents of a task, or of all tasks.
    """
    reseed(config, tasks)
    with (
        unconfined(config.task.confirm_run_unsafe_code),
        metric_failures(tasks["tasks"], samples) as failures,
    ):
        content = evaluate(
            lm=lm,
            task_dict=tasks,
            samples=samples,
            # standard errors of means; `moe_lab.results.statistics` has intervals of all
            bootstrap_iters=1,
            system_instruction=config.system_instruction,
            apply_chat_template=config.apply_chat_template,
            fewshot_as_multiturn=config.fewshot_as_multiturn,
            confirm_run_unsafe_code=True,  # `check_code_execution` has asked
        )
    assert content is not None
    content = dict(content)
    logged = logged_samples(tasks["tasks"], content.pop("samples"))
    without_failed_values(logged, failures)
    return Evaluated(content, logged, failures)


def ask_again(
    run: Run, models: ModelPool, observer: Observer, requests: Sequence[tuple[str, Request]]
) -> None:
    """Answer requests again so that an observer sees their passes. The answers are dropped.

    Args:
        requests: (kind, request) of each.
    """
    print_message(f"{run.folder.name}: {len(requests):,} stored answers are read again and counted")
    with opened_again(run, models) as lm, observed(lm, observer):
        for kind in dict.fromkeys(kind for kind, _ in requests):
            of_kind = [request for request_kind, request in requests if request_kind == kind]
            lm.answer(kind, of_kind, lambda index, answer: None)
