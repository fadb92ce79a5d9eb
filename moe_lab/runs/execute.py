"""Execution of a run: returns the stored result, or computes the missing parts and writes the run's files."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

import yaml

from moe_lab.config.progress import naming
from moe_lab.config.terminal import print_message
from moe_lab.errors import MoeLabError, ResultsError, RunHeldError, first_line, is_out_of_memory
from moe_lab.metrics.counts import Routes
from moe_lab.models.memory import ModelPool
from moe_lab.models.tokenizer import template_block
from moe_lab.results.atomic import plain, write_atomically, write_json
from moe_lab.results.model import RunResult
from moe_lab.results.response_log import ResponseLog
from moe_lab.results.run_log import RunLog, WarningsOnce
from moe_lab.results.samples import check_samples, read_samples, write_samples
from moe_lab.results.stored_files import DamagedError, warn_once
from moe_lab.runs.evaluation.expert import measure
from moe_lab.runs.evaluation.result_block import run_block
from moe_lab.runs.evaluation.run_lm_eval import evaluate_answers
from moe_lab.runs.evaluation.scored import StoredScores
from moe_lab.runs.run import Outcome, Run
from moe_lab.tasks.judges.judging import JUDGEMENTS, judgements_file
from moe_lab.tasks.metric_errors import failure_message

logger = logging.getLogger("moe_lab")


class MetricError(ResultsError):
    """Scores of a run could not be computed. Its other scores are stored."""

    results: RunResult


@contextmanager
def memory_errors(name: str) -> Iterator[None]:
    """Turn "out of memory", of the device or the machine, into a MoeLabError that names the run or study."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not is_out_of_memory(error):
            raise
        raise MoeLabError(
            f"{name}: out of memory: {first_line(error)}.\nStored answers are kept: the same command with a lower "
            "batch_size= continues. A lower max_length=, dtype= or method.n= makes another run."
        ) from error


def execute(run: Run, models: ModelPool, *, begin: Callable[[], None] = lambda: None) -> Outcome:
    """Return the stored result, or compute the missing parts of a run and of the runs that it is compared with.

    The same call after an interruption continues. Raises RunHeldError if another process works on this run, and
    MoeLabError if memory does not suffice.

    `begin`: called when the run is to be computed and no other process works on it.
    """
    if (stored := whole_result(run)) is not None:
        return Outcome(run, stored, stored=True)
    with run.store.held():
        if (stored := whole_result(run)) is not None:  # by the process that held it
            return Outcome(run, stored, stored=True)
        with run.store.status(), memory_errors(run.folder.name):
            begin()
            others, failed = _compared_results(run, models)
            with _run_log(run), naming(run.folder.name):
                results = evaluate_run(run, models, others)
            if failed is not None:
                raise failed
            return Outcome(run, results, stored=False)


def whole_result(run: Run) -> RunResult | None:
    """The stored result if it has its comparisons, metrics and samples, and is not to be computed again."""
    stored = None if run.config.rerun else run.stored()
    if (
        stored is None
        or (run.baseline is not None and stored.base_id is None)
        or not stored.compared.keys() >= run.comparisons.keys()
        or not all(other.measured for other in (run, *run.compared_runs.values()))
    ):
        return None
    try:
        check_samples(stored)
    except DamagedError as error:
        warn_once(f"{error.problem}. It is written again from the stored answers.")
        return None
    return stored


def _compared_results(
    run: Run, models: ModelPool
) -> tuple[dict[str, StoredScores], MetricError | None]:
    """The scores and samples of the runs to compare with, read or computed.

    The error is of the last one with a metric that could not be computed. Its other scores are compared.
    """
    stored: dict[str, StoredScores] = {}
    failed = None
    for name, other in run.compared_runs.items():
        try:
            try:
                results = execute(other, models).results
            except MetricError as error:
                results, failed = error.results, error
            samples = read_samples(results)
        except RunHeldError:
            raise
        except MoeLabError as error:
            message = (
                f"{other.folder.name}, which {run.folder.name} is compared with, failed: {error}"
            )
            raise type(error)(message) from error
        stored[name] = StoredScores(
            run_id=other.run_id,
            results=results.lm_eval.results,
            samples=samples,
            rounding=results.rounding,
        )
    return stored, failed


# The evaluation of one run inside its folder: answers, lm-eval's metrics, files


def evaluate_run(run: Run, models: ModelPool, others: Mapping[str, StoredScores]) -> RunResult:
    """Answer the requests without a stored answer, let lm-eval evaluate all answers, and write the run's files.

    `others` as in `run_block`. results.json is written before the metrics. Raises MetricError, after it is written, if
    a score is missing.
    """
    config = asdict(run.config)
    overrides = config.pop("overrides")
    write_atomically(run.folder / "config.yaml", yaml.safe_dump(plain(config), sort_keys=False))
    write_atomically(run.folder / "overrides.yaml", yaml.safe_dump(overrides))
    path = run.folder / "responses.jsonl"
    again = run.config.rerun  # an interrupted rerun continues its own log
    log = ResponseLog(
        path.with_name("responses.rerun.jsonl") if again else path, run.answers_header
    )
    if log.set_aside is not None:
        reason = "they are of another model commit, made with other versions, or damaged"
        print_message(f"{log.set_aside}: the earlier answers are kept there and not used; {reason}")
    logger.info("%s: %d documents, %d answers stored", run.run_id, run.num_documents, len(log))
    if len(log):
        print_message(
            f"{run.folder.name}: continuing with {len(log):,} stored answer{'s' * (len(log) > 1)}"
        )
    template = template_block(run.config)
    if template and template["chat_template"]["plain"]:
        print_message("The tokenizer has no chat template; a plain one is used.")
    routes = Routes() if run.config.metrics == "expert" else None
    try:
        evaluated = evaluate_answers(run, models, log, routes)
    finally:
        log.close()
    failures = evaluated.pop("failures")
    block = run_block(run, evaluated, log, others, failures, template)
    samples = evaluated.pop("samples")
    write_samples(run.folder, samples)
    if again:
        os.replace(log.path, path)
        if run.judges:
            os.replace(judgements_file(run.folder, again), run.folder / JUDGEMENTS)
    content = plain(evaluated | {"moe_lab": block})
    results = RunResult(content, run.folder)
    write_json(run.folder / "results.json", content)
    if failures:
        error = MetricError(
            f"{failure_message(failures)}\nThe other scores are in {run.folder / 'results.json'}, and all answers are "
            "stored."
        )
        error.results = results
        raise error
    if routes is not None:
        measure(run, models, samples, routes)
    return results


@contextmanager
def _run_log(run: Run) -> Iterator[None]:
    """Write run.log: this package's log, lm-eval's warnings, and the traceback of an error that stops the run."""
    handler = RunLog(run.folder / "run.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    logger.setLevel(logging.INFO)
    warnings = WarningsOnce()
    harness = logging.getLogger("lm_eval")
    quiet = harness.level
    harness.setLevel(logging.WARNING)
    for source in (logger, harness):
        source.addHandler(handler)
        source.addHandler(warnings)
    try:
        yield
        logger.info("finished")
    except RunHeldError as error:
        logger.info("left for later: %s", error)
        raise
    except BaseException:
        logger.exception("stopped")
        raise
    finally:
        for source in (logger, harness):
            source.removeHandler(warnings)
            source.removeHandler(handler)
        harness.setLevel(quiet)
        handler.close()
