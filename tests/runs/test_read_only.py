"""Results in a folder that cannot be written, such as a colleague's: they are planned,
shown and reported on, and nothing new is computed.

Broken by a check that asks every mode for a folder to write, a lock that has to be written to be
looked at, a figure or a page that is written, and weights that load before the folder is refused.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moe_lab.results.locks import acquire, is_locked
from tests.support.command import run_command
from tests.support.sources import ROOT

COMMAND = ["method=roe", "method.n=2", "task=toy_choice", "limit=3", "model=tiny-noisy", "seeds=2"]
EXPERIMENT = ["experiment=roe/figure7", "limit=2", "tuning.n_trials=2", "task=toy_choice"]


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder, with its size and the time at which it was written."""
    files = {}
    for path in sorted(folder.rglob("*")):
        status = path.stat()
        files[str(path)] = status.st_size, status.st_mtime_ns
    return files


@pytest.fixture
def stored(tmp_path, capsys, monkeypatch) -> Path:
    """The output folder of COMMAND, which os.access then says cannot be written."""
    folder = tmp_path / "outputs"
    assert run_command(capsys, *COMMAND, f"output_dir={folder}").code == 0
    access_of_os = os.access

    def access(path, mode, **options) -> bool:
        inside = Path(path).is_relative_to(folder)
        return access_of_os(path, mode, **options) and not (inside and mode & os.W_OK)

    monkeypatch.setattr(os, "access", access)
    return folder


def test_stored_results_need_no_folder_to_write(stored, capsys, loads):
    before = files_of(stored)
    place = f"output_dir={stored}"
    plan = run_command(capsys, *COMMAND, place, "mode=plan")
    assert plan.code == 0
    assert "To run: 0" in plan.out
    plan_of_more = run_command(capsys, *COMMAND, place, "mode=plan", "method.n=3")
    assert plan_of_more.code == 0
    assert "To run: 2" in plan_of_more.out
    assert f"{stored} is not writable: to run this, choose another output_dir=." in plan_of_more.out
    for mode in ("run", "report"):
        shown_output = run_command(capsys, *COMMAND, place, f"mode={mode}")
        assert shown_output.code == 0
        assert f"{stored} is not writable: no page is written." in shown_output.err
        assert "difference" in shown_output.out
        assert "report.html" not in shown_output.out
    loads.clear()
    refused = run_command(capsys, *COMMAND, place, "method.n=3")
    assert refused.code == 2
    assert loads == []
    message = f"output_dir={stored}: {stored} is not writable. Choose another folder."
    assert message in refused.err
    assert files_of(stored) == before


def test_an_output_folder_that_is_a_file_is_refused_before_weights_load(tmp_path, capsys, loads):
    (tmp_path / "file").write_text("")
    refused = run_command(capsys, *COMMAND, f"output_dir={tmp_path / 'file' / 'outputs'}")
    assert refused.code == 2
    assert "is a file. Choose another folder." in refused.err
    assert loads == []
    assert (
        run_command(
            capsys, *COMMAND, f"output_dir={tmp_path / 'file' / 'outputs'}", "mode=plan"
        ).code
        == 0
    )


def test_a_lock_that_is_only_read_is_seen(tmp_path):
    file = tmp_path / ".lock"
    lock = acquire(file)
    assert lock is not None
    file.chmod(0o444)
    assert is_locked(file)
    lock.release()
    assert not is_locked(file)


@contextmanager
def read_only(folder: Path) -> Iterator[list[str]]:
    """A folder without permission to write.

    The value begins commands so that permissions bind even root.
    """
    before = {path: path.stat().st_mode for path in (folder, *folder.rglob("*"))}
    for path, mode in before.items():
        path.chmod(mode & ~0o222)
    prefix = []
    if os.geteuid() == 0:
        dropped = "-dac_override,-dac_read_search"
        prefix = ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}"]
    try:
        yield prefix
    finally:
        for path, mode in before.items():
            path.chmod(mode)


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="permissions do not bind root"
)
@pytest.mark.parametrize("overrides", [COMMAND, EXPERIMENT], ids=["grid", "experiment"])
def test_in_a_folder_without_permission_only_new_results_are_refused(overrides, tmp_path):
    folder = tmp_path / "outputs"
    command = [sys.executable, "-m", "moe_lab", *overrides, f"output_dir={folder}"]

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)

    assert run(*command).returncode == 0
    before = files_of(folder)
    with read_only(folder) as prefix:
        for more_overrides in (["mode=plan"], ["mode=plan", "seed=9"], ["mode=report"], []):
            ended = run(*prefix, *command, *more_overrides)
            assert ended.returncode == 0, ended.stderr
        refused = run(*prefix, *command, "seed=9")
    assert refused.returncode == 2
    assert "is not writable. Choose another folder." in refused.stderr
    assert files_of(folder) == before
