"""The sandbox of bubblewrap or of our own namespaces: `Cage.run` executes one program within `Limits`."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from moe_lab.errors import ResultsError

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds, bytes and counts. The reference solutions of HumanEval+ stay well below the defaults."""

    wall_seconds: float = 60.0
    """Measured outside, against sleeping and waiting. Long, so that a busy machine does not change a score."""
    cpu_seconds: int = 20
    """Per process; ends an endless loop. The slowest reference solution of HumanEval+ takes about 6."""
    memory: int = 1024 * MIB
    """Address space per process; the sum over a program's processes is not limited."""
    processes: int = 5
    """Processes and threads at a time, including the sandbox's own; a program has two to four of them."""
    file_size: int = 8 * MIB
    """Of one file."""
    folder_size: int = 32 * MIB
    """Of the program's own folder, which is in memory and removed at its end."""
    open_files: int = 64


OUT_OF_PROCESSOR_TIME = "timed out: processor time"
OUT_OF_TIME = "timed out: waiting"
PACKAGE = Path(__file__).resolve().parents[2]
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", "/nix/store")
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/program",
    "TMPDIR": "/program",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")},
}
"""The environment variables of a program: no keys, and a fixed hash seed."""


def _import_paths() -> list[str]:
    """The import paths of a program: the standard library, the folder of numpy, and this package."""
    numpy = find_spec("numpy")
    assert numpy is not None and numpy.origin is not None, "a dependency of this package"
    standard = [sysconfig.get_path("stdlib"), str(sysconfig.get_config_var("DESTSHARED"))]
    return list(dict.fromkeys([*standard, str(Path(numpy.origin).parents[1]), str(PACKAGE.parent)]))


def _interpreter_files() -> list[str]:
    """The interpreter and the shared libraries that are installed with it.

    They are shown file by file: the folder that Python is installed in may be the home folder, or ~/.local.
    """
    library = sysconfig.get_config_var("LIBDIR")
    libraries = sorted(Path(library).glob("*.so*")) if library else []
    return [os.path.realpath(sys.executable), *map(str, libraries)]


def _shown(imports: list[str]) -> list[str]:
    """The paths of this machine that are visible inside: system libraries, Python, its packages; links stay links."""
    paths = [*SYSTEM, *_interpreter_files(), *imports[:-1], str(PACKAGE)]
    existing = [path for path in dict.fromkeys(map(os.path.abspath, paths)) if os.path.exists(path)]
    links = [path for path in existing if os.path.islink(path)]
    folders = sorted({os.path.realpath(path) for path in existing})
    top = [path for path in folders if not any(path.startswith(f"{other}/") for other in folders)]
    return top + [link for link in links if not any(link.startswith(f"{folder}/") for folder in top)]


IMPORT_PATHS = _import_paths()  # here, because sysconfig's first use is not safe in threads
SHOWN = _shown(IMPORT_PATHS)


@dataclass(frozen=True)
class Cage:
    """A sandbox; `bubblewrap` is the path of bwrap, or None for our own namespaces."""

    bubblewrap: str | None

    @property
    def name(self) -> str:
        return "bubblewrap" if self.bubblewrap else "Linux namespaces"

    def run(self, program: str, limits: Limits) -> str:
        """Execute Python source in a new sandbox. Returns "passed", "timed out: <which time>" or "failed: <why>".

        Raises ResultsError if the sandbox could not be built; the program was not executed then.
        """
        request = {"program": program, "limits": asdict(limits), "paths": IMPORT_PATHS}
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as report:
            stdin.write(json.dumps(request).encode())
            stdin.seek(0)
            code, trouble = self._execute(stdin, report, limits)
            if trouble:
                raise ResultsError(f"The cage of {self.name} could not be built: {trouble}")
            if code is None:
                return OUT_OF_TIME
            report.seek(0)
            return report.read().decode(errors="replace") or _how_it_ended(code)

    def _execute(self, stdin: IO[bytes], report: IO[bytes], limits: Limits) -> tuple[int | None, str]:
        """The exit code, None after the time limit, and the sandbox's stderr, where the program cannot write."""
        with tempfile.TemporaryFile() as stderr:
            process = subprocess.Popen(
                self._command(limits),
                stdin=stdin,
                stdout=report,
                stderr=stderr,
                env=ENVIRONMENT,
                cwd="/",
                start_new_session=True,
                **self._unprivileged(),
            )
            code: int | None = None
            try:
                code = process.wait(limits.wall_seconds)
            except subprocess.TimeoutExpired:
                pass
            finally:
                if code is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            stderr.seek(0)
            return code, stderr.read(2000).decode(errors="replace").strip()

    def _command(self, limits: Limits) -> list[str]:
        interpreter = [os.path.realpath(sys.executable), "-s", "-S", "-B", "-c"]
        start = f"import sys; sys.path[:] = {IMPORT_PATHS!r}; "
        if self.bubblewrap is None:
            call = f"from moe_lab.tasks.sandbox.inside import main; main({limits.folder_size}, {SHOWN!r})"
            return [*interpreter, start + call]
        call = "from moe_lab.tasks.sandbox.inside import run_request; run_request()"
        return [self.bubblewrap, *_bubblewrap_options(limits), "--", *interpreter, start + call]

    def _unprivileged(self) -> dict[str, Any]:
        """The user id of bwrap. As root this is an id without other processes, because limits do not apply to root."""
        from moe_lab.tasks.sandbox.inside import free_id

        if self.bubblewrap is None or os.geteuid() != 0:
            return {}
        user, group, slot = free_id("uid"), free_id("gid"), secrets.randbelow(10000)
        if user is None or group is None:
            return {}
        return {"user": user - slot, "group": group - slot, "extra_groups": []}


def candidates() -> list[Cage]:
    """The sandboxes that this operating system may have, in order of preference."""
    bubblewrap = shutil.which("bwrap")
    return [*([Cage(bubblewrap)] if bubblewrap else []), Cage(None)]


def _how_it_ended(code: int) -> str:
    """The outcome of a program without report, by its exit code: it ended its process, or was killed."""
    if code == 128 + signal.SIGXCPU:
        return OUT_OF_PROCESSOR_TIME
    if code > 128:
        return f"failed: ended by signal {code - 128}"
    return f"failed: ended early with exit code {code}"


def _bubblewrap_options(limits: Limits) -> list[str]:
    options = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    options += ["--cap-drop", "ALL", "--uid", "1000", "--gid", "1000"]
    for path in SHOWN:
        link = os.path.islink(path)
        options += ["--symlink", os.readlink(path), path] if link else ["--ro-bind", path, path]
    for device in ("null", "zero", "urandom"):
        options += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    options += ["--perms", "0777", "--size", str(limits.folder_size), "--tmpfs", "/program"]
    return [*options, "--chdir", "/program", "--remount-ro", "/"]
