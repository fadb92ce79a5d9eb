"""A small library before libc (`interpose.c`), which lets the n-th write, fsync or rename below a folder fail."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARY = "MOE_LAB_FAULTS_LIBRARY"
"""The environment variable with the library's path, in a process that it is loaded in."""


def restart_with_library(module: str, argv: list[str]) -> None:
    """Start this Python anew with the library loaded first, unless it is. Raises SystemExit without a C compiler."""
    if LIBRARY in os.environ:
        return
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("Failing writes need a C compiler (cc or gcc). --writes 0 leaves them out.")
    library = Path(tempfile.mkdtemp(prefix="faults-")) / "interpose.so"
    source = Path(__file__).with_name("interpose.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    environment = os.environ | {"LD_PRELOAD": str(library), LIBRARY: str(library)}
    os.execve(sys.executable, [sys.executable, "-m", module, *argv], environment)


def remove_library() -> None:
    """Delete the library's file, which stays loaded, and keep it from the processes that this one starts."""
    if LIBRARY in os.environ:
        shutil.rmtree(Path(os.environ[LIBRARY]).parent, ignore_errors=True)
        os.environ.pop("LD_PRELOAD", None)


def arm(folder: Path, number: int, error: int) -> None:
    """Count what this process writes below a folder; let call `number` (from 1; 0: none) fail with an errno."""
    ctypes.CDLL(None).faults_arm(f"{folder}/".encode(), ctypes.c_long(number), error)


def calls() -> int:
    """How many calls were counted since `arm`."""
    counted = ctypes.CDLL(None).faults_calls
    counted.restype = ctypes.c_long
    return int(counted())
