"""Breaks if a program of a model can do harm: each attack is contained and is no success, or nothing is executed."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

from tests.sandbox.attack import Ended, attack


def contained(ended: Ended) -> bool:
    """Whether the program was executed and did not pass; where no cage can be built, it must have been refused."""
    if ended.refused is not None:
        assert "cannot be confined on this machine" in ended.refused
        return True
    return all(outcome.startswith(("failed: ", "timed out: ")) for outcome in ended.outcomes)


def test_a_fork_bomb() -> None:
    stubborn = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    assert contained(attack("import os\nwhile True:\n    os.fork()", stubborn))


def test_an_endless_loop() -> None:
    stubborn = (
        "import signal\nfor number in range(1, 65):\n    try:\n        signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nwhile True:\n    pass"
    )
    assert contained(attack("while True:\n    pass", stubborn, "import time\nwhile True:\n    time.sleep(9)"))


def test_an_allocation_of_ten_gigabytes() -> None:
    assert contained(attack("data = bytearray(10 * 10**9)", "data = [0] * (10 * 10**9 // 8)"))


def test_memory_that_no_limit_counts() -> None:
    """System V segments and files in memory outlive the process that filled them."""
    segment = "import ctypes\nassert ctypes.CDLL(None).shmget(0, 2**20, 0o1600) != -1"
    assert contained(attack(segment, "import os\nos.memfd_create('x')"))


def test_a_file_outside_its_folder() -> None:
    """Also where every user of the machine may write."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        before = Path(folder) / "existing"
        before.write_text("as it was")
        before.chmod(0o666)
        made = [Path(folder) / "made", "/tmp/moe_lab_made", "/moe_lab_made", Path.home() / "moe_lab_made"]
        programs = [f"open({str(target)!r}, 'w').write('x')" for target in [*made, before]]
        assert contained(attack(*programs))
        assert before.read_text() == "as it was"
        assert not any(os.path.exists(target) for target in made)


def test_a_socket() -> None:
    with socket.socket() as server, socket.socket(socket.AF_UNIX) as local:
        server.bind(("127.0.0.1", 0))
        server.listen()
        local.bind("")
        local.listen()
        port, name = server.getsockname()[1], local.getsockname().decode()
        assert contained(
            attack(
                f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)",
                f"import socket\nsocket.socket(socket.AF_UNIX).connect({name!r})",
            )
        )


def test_ending_early_is_no_success() -> None:
    said = 'import os\nfor fd in range(3, 9):\n    try:\n        os.write(fd, b\'{"outcome": "passed"}\')\n'
    said += "    except OSError:\n        pass\nos._exit(0)"
    ended = attack("import os\nos._exit(0)", "raise SystemExit(0)", said)
    assert contained(ended)


def test_a_process_that_leaves_its_parent_dies_with_the_cage() -> None:
    daemon = (
        "import os, time, ctypes\nif not os.fork():\n    os.setsid()\n"
        "    ctypes.CDLL(None).prctl(15, b'moe_lab_daemon')\n    time.sleep(100)"
    )
    ended = attack(daemon)
    assert ended.refused or ended.outcomes == ["passed"]
    names = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            names.append(comm.read_text().strip())
        except OSError:
            continue  # it ended meanwhile
    assert "moe_lab_daemon" not in names


def test_keys_are_not_seen() -> None:
    ended = attack(
        "import os\nassert 'hush' not in str(dict(os.environ))",
        "import os\nassert not os.path.exists('/proc/1')",
        environment={"WANDB_API_KEY": "hush"},
    )
    assert ended.refused or ended.outcomes == ["passed", "passed"]


def test_ordinary_programs_pass() -> None:
    ended = attack("x = 1", "import numpy\nassert numpy.ones(3).sum() == 3", "open('own', 'w').write('x')")
    assert ended.refused or ended.outcomes == ["passed"] * 3
