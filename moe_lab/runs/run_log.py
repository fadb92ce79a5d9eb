"""run.log of a run's folder."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moe_lab.errors import RunHeldError
from moe_lab.results.run_log import RunLog, WarningsOnce

logger = logging.getLogger("moe_lab")


@contextmanager
def run_log(folder: Path) -> Iterator[None]:
    """Inside the context, write run.log.

    It has this package's log, lm-eval's warnings, and the traceback of an error that stops the run.
    """
    handler = RunLog(folder / "run.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    warnings = WarningsOnce()
    harness = logging.getLogger("lm_eval")
    level_before = harness.level
    logger.setLevel(logging.INFO)
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
        harness.setLevel(level_before)
        handler.close()
