"""The evaluation of one run inside its folder: answers, lm-eval's metrics, files."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import yaml

from moe_lab.config.progress import naming
from moe_lab.config.recorded import recorded, without_values
from moe_lab.errors import RunHeldError
from moe_lab.metrics.counts import Routes
from moe_lab.results.atomic import plain, write_atomically, write_json
from moe_lab.results.logs import ResponseLog, RunLog, WarningsOnce, adopt_answers
from moe_lab.results.model import RunResult
from moe_lab.runs.evaluation.result_block import cost_block, judges_block, moe_lab_block
from moe_lab.runs.evaluation.run_lm_eval import evaluate_answers
from moe_lab.tasks.judges.judging import JUDGEMENTS, judgements_file

if TYPE_CHECKING:
    from moe_lab.models.memory import ModelPool
    from moe_lab.results.logs import ResponseLog
    from moe_lab.runs.run import Run


logger = logging.getLogger("moe_lab")


def evaluate_run(run: Run, models: ModelPool, before: Mapping[str, dict[str, Any]]) -> RunResult:
    """Answer the requests without a stored answer, let lm-eval evaluate all answers, and write the run's files.

    The caller holds the run's lock. `before` as in `moe_lab_block`. Returns the content of results.json, which is
    written before the metrics.
    """
    with _run_log(run), naming(run.folder.name):
        return _evaluate_and_write(run, models, before)


def _evaluate_and_write(run: Run, models: ModelPool, before: Mapping[str, dict[str, Any]]) -> RunResult:
    from moe_lab.models.tokenizer import template_block
    from moe_lab.results.samples import write_samples

    config = recorded(run.config)
    overrides = config.pop("overrides")
    write_atomically(run.folder / "config.yaml", yaml.safe_dump(plain(config), sort_keys=False))
    write_atomically(run.folder / "overrides.yaml", yaml.safe_dump(overrides))
    path = run.folder / "responses.jsonl"
    again = run.config.rerun  # an interrupted rerun continues its own log
    if run.judges and not again:
        adopt_answers(run.folder, run.answers_header)
    log = ResponseLog(path.with_name("responses.rerun.jsonl") if again else path, run.answers_header)
    if log.set_aside is not None:
        reason = "they are of another model commit, made with other versions, or damaged"
        print(f"{log.set_aside}: the earlier answers are kept there and not used; {reason}", file=sys.stderr)
    logger.info("%s: %d documents, %d answers stored", run.run_id, run.num_documents, len(log))
    if len(log):
        print(f"{run.folder.name}: continuing with {len(log):,} stored answers", file=sys.stderr)
    template = template_block(run.config)
    if template and template["chat_template"]["plain"]:
        print("The tokenizer has no chat template; a plain one is used.", file=sys.stderr)
    routes = Routes() if run.config.metrics == "expert" else None
    try:
        evaluated = evaluate_answers(run, models, log, routes)
    finally:
        log.close()
    counters = {name: int(amount) for name, amount in log.cost.items()}
    report = run.method.report(run.facts, counters, log.session_info)
    block = moe_lab_block(run, evaluated, cost_block(log), report, before)
    block["model"] |= {name: value for name, value in log.environment.items() if name != "device"}
    samples = evaluated.pop("samples")
    block |= template | judges_block(run.judges, samples)
    write_samples(run.folder, samples)
    if again:
        os.replace(log.path, path)
        if run.judges:
            os.replace(judgements_file(run.folder, again), run.folder / JUDGEMENTS)
    content = without_values(plain(evaluated | {"moe_lab": block}), run.config)
    results = RunResult(content, run.folder)
    write_json(run.folder / "results.json", content)
    if routes is not None:
        from moe_lab.runs.evaluation.expert import measure

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
