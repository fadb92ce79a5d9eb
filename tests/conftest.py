"""Small models with random weights, of every family, and a byte tokenizer: shared by all tests."""

import gc
import logging
import multiprocessing.process
import os
import signal
import sqlite3.dbapi2
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import tqdm

from tests.support.models import FAMILIES, make_model, make_tokenizer
from tests.support.tiers import by_family

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("MOE_LAB_CACHE", str(Path(tempfile.gettempdir()) / "moe_lab-tests"))
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# libraries' handlers keep the stderr of the test in which they were made, which pytest closes
logging.raiseExceptions = False
# submitit configures logging when it is imported. This closes all handlers, and absl's handler
# closes pytest's stderr.
os.environ["SUBMITIT_LOG_LEVEL"] = "NOCONFIG"
# tqdm's lock is shared with forked processes: a killed process that holds it would block the others
tqdm.tqdm.monitor_interval = 0
tqdm.tqdm.set_lock(threading.RLock())
# no power is cut; waiting for the disk takes a tenth of a short command's time
os.fsync = lambda file: None


def connected(*args, connect=sqlite3.dbapi2.connect, **keys) -> sqlite3.Connection:
    """A connection that does not wait for the disk either: an Optuna study has many commits."""
    connection = connect(*args, **keys)
    connection.execute("PRAGMA synchronous=OFF")
    return connection


sqlite3.dbapi2.connect = connected
os.environ.pop("COLUMNS", None)  # tables are as wide as in a pipe
gc.set_threshold(10_000)  # as moe_lab/__main__.py does: imports make many objects that stay

MANY_TESTS = 40
"""From here on a process imports the libraries at once."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt the libraries' objects from garbage collection.

    Otherwise runs that load and free models would go through them again.
    """
    if len(session.items) >= MANY_TESTS:
        import transformers.models.auto.modeling_auto  # noqa: F401

        gc.collect()
        gc.freeze()


@pytest.fixture
def heeding_signals() -> Iterator[None]:
    """Processes that a test starts heed SIGINT and SIGHUP, which they would ignore like the tests
    themselves if these run in the background or under nohup."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def what_stays_is_not_collected() -> None:
    """Each training ends with two garbage collections, which would go through
    all earlier tests' objects."""
    gc.freeze()


@pytest.fixture(autouse=True)
def processes_are_slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test in the fast tier starts no process."""
    if request.node.get_closest_marker("slow"):
        return

    def refused(*args, **keys):
        raise AssertionError("A test that starts processes is marked slow.")

    monkeypatch.setattr(subprocess.Popen, "__init__", refused)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refused)
    monkeypatch.setattr(os, "fork", refused)


@pytest.fixture(autouse=True)
def small_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn once, as pictures of few pixels, but for the tests of pages.

    Drawing them again for their layout and as SVG takes long.
    """
    from moe_lab.reports.figures import drawing  # not by the process that only waits for the others

    if "pages" not in request.path.parts:
        monkeypatch.setattr(drawing, "fit", lambda figure: figure.set_layout_engine("none"))
        monkeypatch.setattr(drawing, "FORMATS", {"png": {}})
        monkeypatch.setattr(drawing, "DPI", 30)


@pytest.fixture(scope="session", params=by_family(FAMILIES))
def moe_model(request):
    """A small model of each MoE family in turn."""
    return make_model(request.param)


@pytest.fixture(scope="session")
def olmoe():
    return make_model("olmoe")


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="session")
def tiny_olmoe_dir(tmp_path_factory, olmoe, tokenizer) -> Path:
    """A saved random OLMoE with its tokenizer: what `model.path` takes."""
    folder = tmp_path_factory.mktemp("models") / "tiny-olmoe"
    olmoe.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def small_index(monkeypatch):
    """An unknown name is looked for among the package's tasks alone: lm-eval's index takes 10 s
    to read.

    `tests/tasks/test_loading.py` reads the whole index.
    """
    from lm_eval.tasks import TaskManager

    from moe_lab.tasks import task_index

    def index(include_path):
        folders = [str(task_index.OWN_TASKS), *([include_path] if include_path else [])]
        return TaskManager(include_path=folders, include_defaults=False)

    monkeypatch.setattr(task_index, "_full_index", index)


@pytest.fixture
def loads(monkeypatch):
    """One entry per time that weights are loaded."""
    import moe_lab.models.load

    seen = []
    load = moe_lab.models.load.load_model

    def counting(model, **keys):
        seen.append(model.name)
        return load(model, **keys)

    monkeypatch.setattr(moe_lab.models.load, "load_model", counting)
    return seen


@pytest.fixture
def four_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry with MoE-Bench's expert metrics alone; stored results of tests have these."""
    from moe_lab.metrics.registry import METRICS

    of_paper = {"load_balance", "collaboration", "capacity", "specialization"}
    for name in METRICS.keys() - of_paper:
        monkeypatch.delitem(METRICS, name)
