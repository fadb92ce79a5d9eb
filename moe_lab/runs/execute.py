"""Execution of a run: returns the stored result, or computes what is missing."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import yaml

from moe_lab.config.progress import naming
from moe_lab.config.terminal import print_message
from moe_lab.errors import MoeLabError, ResultsError, RunHeldError, first_line, is_out_of_memory
from moe_lab.metrics.counts import SelectedExperts
from moe_lab.models.memory import ModelPool
from moe_lab.models.tokenizer import template_block
from moe_lab.results.atomic import plain, write_atomically, write_json
from moe_lab.results.model import RunResult
from moe_lab.results.response_log import ResponseLog
from moe_lab.results.samples import check_samples, read_samples, write_samples
from moe_lab.results.stored_files import DamagedError, warn_once
from moe_lab.runs.evaluation import confidence
from moe_lab.runs.evaluation.expert import measure
from moe_lab.runs.evaluation.result_block import run_block
from moe_lab.runs.evaluation.run_lm_eval import evaluate_answers
from moe_lab.runs.evaluation.scored import StoredScores
from moe_lab.runs.run import Outcome, Run
from moe_lab.runs.run_log import run_log
from moe_lab.tasks.judges.judging import JUDGEMENTS, judgements_file
from moe_lab.tasks.metric_errors import failure_message

logger = logging.getLogger("moe_lab")

ANSWERS = "responses.jsonl"
"""The log of answers in a run's folder."""


class MetricError(ResultsError):
    """Scores of a run could not be computed. Its other scores are stored."""

    results: RunResult


@contextmanager
def memory_errors(name: str) -> Iterator[None]:
    """Turn "out of memory" into a MoeLabError that names the run or study.

    It may be the memory of the device or of the machine.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not is_out_of_memory(error):
            raise
        raise MoeLabError(
            f"{name}: out of memory: {first_line(error)}.\n"
            "Stored answers are kept: the same command with a lower batch_size= continues. "
            "A lower max_length=, dtype= or method.n= makes another run."
        ) from error


def execute(run: Run, models: ModelPool, *, begin: Callable[[], None] = lambda: None) -> Outcome:
    """Return the stored result, or compute what is missing.

    Runs that it is compared with are computed first. The same call after an interruption continues.

    Raises RunHeldError if another process works on this run, and MoeLabError if memory does not
    suffice.

    Args:
        begin: called when the run is to be computed and no other process works on it.
    """
    stored = whole_result(run)
    if stored is not None:
        return Outcome(run, stored, stored=True)
    with run.store.held():
        stored = whole_result(run)
        if stored is not None:  # by the process that held it
            return Outcome(run, stored, stored=True)
        with run.store.status(), memory_errors(run.folder.name):
            begin()
            compared = _compared_scores(run, models)
            with run_log(run.folder), naming(run.folder.name):
                results = evaluate_run(run, models, compared.scores)
            if compared.failed is not None:
                raise compared.failed
            return Outcome(run, results, stored=False)


def whole_result(run: Run) -> RunResult | None:
    """The stored result if it has its comparisons, metrics and samples.

    None if it is to be computed again.
    """
    if run.config.rerun:
        return None
    stored = run.stored()
    if stored is None:
        return None
    lacks_base = run.baseline is not None and stored.base_id is None
    if lacks_base or not stored.compared.keys() >= run.comparisons.keys():
        return None
    needed_runs = (run, *run.compared_runs.values())
    if not all(needed.measured for needed in needed_runs):
        return None
    try:
        check_samples(stored)
    except DamagedError as error:
        warn_once(f"{error.problem}. It is written again from the stored answers.")
        return None
    return stored


@dataclass
class ComparedScores:
    """The runs that a run is compared with."""

    scores: dict[str, StoredScores] = field(default_factory=dict)
    """By name, as in `Run.compared_runs`."""
    failed: MetricError | None = None
    """The error of the last one with a metric that could not be computed.

    Its other scores are compared.
    """


def _compared_scores(run: Run, models: ModelPool) -> ComparedScores:
    """The scores and samples of the runs to compare with, read or computed."""
    compared = ComparedScores()
    for name, compared_run in run.compared_runs.items():
        try:
            try:
                results = execute(compared_run, models).results
            except MetricError as error:
                results = error.results
                compared.failed = error
            samples = read_samples(results)
        except RunHeldError:
            raise
        except MoeLabError as error:
            names = f"{compared_run.folder.name}, which {run.folder.name} is compared with"
            message = f"{names}, failed: {error}"
            raise type(error)(message) from error
        compared.scores[name] = StoredScores(
            run_id=compared_run.run_id,
            results=results.lm_eval.results,
            samples=samples,
            rounding=results.rounding,
        )
    return compared


def evaluate_run(run: Run, models: ModelPool, others: Mapping[str, StoredScores]) -> RunResult:
    """Answer the requests that have no stored answer, and let lm-eval evaluate all answers.

    results.json is written before the metrics. Raises MetricError, after it is written, if a score
    is missing.

    Args:
        others: as in `run_block`.
    """
    _write_config(run)
    log = _opened_log(run)
    template = template_block(run.config)
    if template and template["chat_template"]["plain"]:
        print_message("The tokenizer has no chat template; a plain one is used.")
    routes = SelectedExperts() if run.config.metrics == "expert" else None
    try:
        evaluated = evaluate_answers(run, models, log, routes)
    finally:
        log.close()
    block = run_block(run, evaluated, log, others, template)
    write_samples(run.folder, evaluated.samples)
    if run.config.rerun:
        _replace_answers(run, log)
    content = plain(evaluated.content | {"moe_lab": block})
    results = RunResult(content, run.folder)
    write_json(run.folder / "results.json", content)
    if evaluated.failures:
        error = MetricError(
            f"{failure_message(evaluated.failures)}\n"
            f"The other scores are in {run.folder / 'results.json'}, and all answers are stored."
        )
        error.results = results
        raise error
    if routes is not None:
        measure(run, models, evaluated.samples, routes)
    if run.config.metrics == "confidence":
        confidence.measure(run, models, evaluated)
    return results


def _write_config(run: Run) -> None:
    """Write config.yaml and overrides.yaml."""
    config = asdict(run.config)
    overrides = config.pop("overrides")
    write_atomically(run.folder / "config.yaml", yaml.safe_dump(plain(config), sort_keys=False))
    write_atomically(run.folder / "overrides.yaml", yaml.safe_dump(overrides))


def _opened_log(run: Run) -> ResponseLog:
    """The log of answers. A message says which stored answers are used, or are not used any
    more."""
    name = ANSWERS
    if run.config.rerun:  # an interrupted rerun continues its own log
        name = "responses.rerun.jsonl"
    log = ResponseLog(run.folder / name, run.answers_header)
    if log.set_aside is not None:
        reason = "they are of another model commit, made with other versions, or damaged"
        print_message(f"{log.set_aside}: the earlier answers are kept there and not used; {reason}")
    logger.info("%s: %d documents, %d answers stored", run.run_id, run.num_documents, len(log))
    if len(log):
        answers = "answer" if len(log) == 1 else "answers"
        print_message(f"{run.folder.name}: continuing with {len(log):,} stored {answers}")
    return log


def _replace_answers(run: Run, log: ResponseLog) -> None:
    """Put the answers of a rerun, and their judgements, in the place of the earlier ones."""
    os.replace(log.path, run.folder / ANSWERS)
    if run.judges:
        os.replace(judgements_file(run.folder, run.config.rerun), run.folder / JUDGEMENTS)
