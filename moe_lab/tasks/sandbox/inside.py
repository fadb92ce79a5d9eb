"""The code that runs inside the sandbox. It imports only Python's standard library: few other modules are there."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

# A seccomp filter of system calls that use uncounted memory or risky parts of the kernel

NUMBERS = {
    # System V memory, queues and semaphores; files in memory; keys; userfaultfd, bpf, performance counters, io_uring;
    # sockets, whose buffers are no process's memory; tracing other processes and taking their descriptors
    "x86_64": (
        0xC000003E,
        (29, 68, 64, 319, 248, 249, 250, 323, 321, 298, 425, 41, 53, 101, 310, 311, 438),
    ),
    "aarch64": (
        0xC00000B7,
        (194, 186, 190, 279, 217, 218, 219, 282, 280, 241, 425, 198, 199, 117, 270, 271, 438),
    ),
}
"""The kernel's number of each architecture, and the refused calls: shmget, msgget, semget, memfd_create, add_key,
request_key, keyctl, userfaultfd, bpf, perf_event_open, io_uring_setup, socket, socketpair, ptrace, process_vm_readv,
process_vm_writev, pidfd_getfd."""
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
OTHER_CALLING_CONVENTION = 0x40000000
"""First number of x86_64's second set of system calls (x32)."""
SECCOMP, FILTER = 22, 2


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def refuse_system_calls() -> None:
    """Install the filter: the calls fail with EPERM, in children too. Needs no_new_privs. Raises OSError."""
    machine = platform.machine()
    if machine not in NUMBERS:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    code = filter_program(*NUMBERS[machine])
    program = _Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(SECCOMP, FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp filters are not available")


def filter_program(architecture: int, refused: tuple[int, ...]) -> bytes:
    """The filter in the kernel's format: 8 bytes per instruction (code, jump if true, jump if false, value)."""
    count = len(refused)
    instructions = [
        (LOAD, 0, 0, 4),  # the architecture
        (EQUAL, 0, count + 3, architecture),
        (LOAD, 0, 0, 0),  # the call's number
        (AT_LEAST, count + 1, 0, OTHER_CALLING_CONVENTION),
        *((EQUAL, count - index, 0, number) for index, number in enumerate(refused)),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)


# The program's two processes: one executes it, the other reports the outcome
#
# The *reporter* has the report's descriptor and draws a random word after the fork. The *program's process* has
# neither: it reads the word from a pipe after the program has ended, and sends it back with the outcome. A program that
# ends its process, inspects its interpreter, replaces functions, or writes to every descriptor does not pass. A program
# that knows this protocol can still forge a report, as it could redefine the tests: solution and tests are one program.

DUMPABLE, NO_NEW_PRIVS = 4, 38
CAPABILITIES_VERSION = 0x20080522
WORD = 16
MOST = 1000
"""Bytes of the word, and of an outcome."""


def run_request() -> None:
    """Read {"program", "limits", "paths"} from stdin, run the program, write its outcome on stdout and exit.

    If the program did not run to its end, nothing is written and the exit code is that of its process, as in a shell.
    The program's output is dropped.
    """
    # Python's handler would let the program raise an error here
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with os.fdopen(0, "rb", closefd=False) as stdin:
        request = json.loads(stdin.read())
    limit(request["limits"])
    words, give_word = os.pipe()
    answers, give_answer = os.pipe()
    process = os.fork()
    if not process:
        os.close(give_word)
        os.close(answers)
        run_program(request["program"], request["paths"], words, give_answer)
    word = os.urandom(WORD)  # not in the memory that the program's process is a copy of
    os.write(give_word, word)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.set_blocking(answers, False)
    try:
        answer = os.read(answers, WORD + MOST)
    except BlockingIOError:  # none was given
        answer = b""
    if answer.startswith(word):
        os.write(1, answer[WORD:])
    os._exit(code if code >= 0 else 128 - code)


def run_program(program: str, paths: list[str], words: int, give_answer: int) -> None:
    """Execute Python source, send its outcome after the word from the pipe `words`, and exit."""
    nothing = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):  # errors of building the sandbox were on stderr until here
        os.dup2(nothing, descriptor)
    os.close(nothing)
    sys.path[:] = paths
    identity, read, write, leave = os.getpid, os.read, os.write, os._exit  # the program may replace them
    own = identity()
    outcome = execute(program)
    if identity() == own:  # and not a process that the program forked
        write(give_answer, read(words, WORD) + outcome.encode(errors="replace")[:MOST])
    leave(0)


def execute(program: str) -> str:
    """The outcome of a program: "passed", or "failed: " and the type of its exception."""
    try:
        exec(compile(program, "<program>", "exec"), {})
    except BaseException as error:  # SystemExit, too, is a failure
        return f"failed: {type(error).__name__}"
    return "passed"


def limit(limits: dict[str, Any]) -> None:
    """Drop all privileges and set the limits of this process and its children. Raises OSError."""
    drop_capabilities()
    refuse_system_calls()
    cpu = int(limits["cpu_seconds"])
    for kind, most in (
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_FSIZE, limits["file_size"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        resource.setrlimit(kind, (int(most), int(most)))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))


def drop_capabilities() -> None:
    """Drop the capabilities in all user namespaces, also after an exec, and deny access by other processes of the user.

    Then the program can neither trace the reporter nor take its descriptors. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    for call, arguments in (
        (libc.capset, (header, none)),
        (libc.prctl, (NO_NEW_PRIVS, 1, 0, 0, 0)),
        (libc.prctl, (DUMPABLE, 0, 0, 0, 0)),
    ):
        if call(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "cannot give up privileges")


# A sandbox of Linux namespaces, for machines without bubblewrap: `main` runs in a new interpreter
#
# Three processes, each the child of the one before: the *keeper* (outside; writes the user map and waits), the *maker*
# (enters the namespaces) and the *init* (process 1 of the sandbox: builds its file system, then forks the two processes
# of `run_request` and waits for them). When init ends, the kernel ends every process in the sandbox. The user namespace
# maps the program to a user id without other processes, since limits on processes do not apply to root.
#
# Needs Linux 5.12 (mount_setattr). Any text on stderr means that the sandbox could not be built.

NEW_NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000
"""User, mount, process, network, IPC and host name."""
PDEATHSIG = 1
NOSUID, NODEV, RDONLY, REMOUNT, BIND, REC, PRIVATE = 2, 4, 1, 32, 4096, 16384, 1 << 18
DETACH = 2
MOUNT_SETATTR, HERE, RECURSIVE = 442, -100, 0x8000
INSIDE = 1000
"""The program's user and group id, seen from inside."""
DEVICES = ("null", "zero", "urandom")

libc = ctypes.CDLL(None, use_errno=True)


def main(folder_size: int, shown: list[str]) -> None:
    """Run the request on stdin (`run_request`) in a sandbox with the paths `shown` alone, read-only."""
    # as in `run_request`: the program may be of the same user as init
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _die_with_parent(os.getppid())
    ours, makers = socket.socketpair()
    maker = _fork("maker", lambda: _maker(ours, makers, folder_size, shown))
    makers.close()
    if ours.recv(1):
        _map_users(maker, "uid", os.getuid())
        _map_users(maker, "gid", os.getgid())
        ours.send(b".")
    ours.close()
    os._exit(_wait(maker))


def _maker(keepers: socket.socket, ours: socket.socket, folder_size: int, shown: list[str]) -> None:
    keepers.close()
    _call("unshare", NEW_NAMESPACES)
    _die_with_parent(os.getppid())
    ours.send(b".")
    if not ours.recv(1):  # the keeper has ended
        os._exit(1)
    ours.close()
    init = _fork("init", lambda: _init(folder_size, shown))
    os._exit(_wait(init))


def _init(folder_size: int, shown: list[str]) -> None:
    _die_with_parent(0)
    with open("/proc/sys/user/max_user_namespaces", "w") as most:
        most.write("0")  # the program cannot become privileged in a namespace of its own
    _build_root(folder_size, shown)
    reporter = _fork("reporter", _reporter)
    os._exit(_wait(reporter))


def _reporter() -> None:
    if os.getuid() != INSIDE:
        os.setgroups([])
        os.setresgid(INSIDE, INSIDE, INSIDE)
        os.setresuid(INSIDE, INSIDE, INSIDE)
    run_request()


def _build_root(folder_size: int, shown: list[str]) -> None:
    """Build a file system of `shown`, a few devices, and /program, the only writable folder."""
    _mount(None, "/", None, REC | PRIVATE)
    _mount("tmpfs", "/tmp", "tmpfs", NOSUID, "size=1m,mode=0755")
    os.chdir("/tmp")
    os.mkdir(".old")
    _call("pivot_root", b".", b".old")
    os.chdir("/")
    for path in shown:
        _show(path, RDONLY | NOSUID | NODEV)
    for device in DEVICES:
        _show(f"/dev/{device}", RDONLY | NOSUID)
    os.mkdir("/program")
    _mount("tmpfs", "/program", "tmpfs", NOSUID | NODEV, f"size={folder_size},nr_inodes=1k,mode=0777")
    _call("umount2", b"/.old", DETACH)
    os.rmdir("/.old")
    _mount(None, "/", None, REMOUNT | BIND | RDONLY | NOSUID | NODEV)
    os.chdir("/program")


def _show(path: str, flags: int) -> None:
    """Bind a folder or file of the machine read-only, including mounts below it; copy a link."""
    source = f"/.old{path}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.islink(source):
        os.symlink(os.readlink(source), path)
        return
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(source, path, None, BIND | REC)
    attributes = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)
    _call("syscall", MOUNT_SETATTR, HERE, path.encode(), RECURSIVE, attributes, ctypes.sizeof(attributes))


def _map_users(process: int, kind: str, own: int) -> None:
    """Map the program's id to our own, or as root to an unused one, keeping 0 to build the file system."""
    unused = free_id(kind) if os.geteuid() == 0 else None
    if unused is None and kind == "gid":
        with open(f"/proc/{process}/setgroups", "w") as setgroups:
            setgroups.write("deny")
    with open(f"/proc/{process}/{kind}_map", "w") as file:
        file.write(f"{INSIDE} {own} 1\n" if unused is None else f"0 0 1\n{INSIDE} {unused} 1\n")


def free_id(kind: str) -> int | None:
    """A high user ("uid") or group ("gid") id, made from the last digits of our process id.

    Processes whose ids agree in the last four digits get the same one; on kernels before 5.14 their sandboxes share one
    limit on processes. None if few ids exist, as in a container with a single user.
    """
    with open(f"/proc/self/{kind}_map") as ours:
        highest = max(int(start) + int(count) for start, _, count in map(str.split, ours))
    return min(highest, 2**31) - 1000 - os.getpid() % 10000 if highest >= 2**16 else None


def _fork(name: str, child: Callable[[], None]) -> int:
    """Fork. The child never returns and prints an error on stderr."""
    process = os.fork()
    if process:
        return process
    try:
        child()
    except BaseException as error:
        print(f"{name}: {error!r}", file=sys.stderr, flush=True)
    os._exit(1)


def _wait(process: int) -> int:
    """Reap children until `process` ends. Returns its exit code, as in a shell."""
    while True:
        ended, status = os.wait()
        if ended == process:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _die_with_parent(parent: int) -> None:
    _call("prctl", PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [text.encode() if text is not None else None for text in (source, target, kind, options)]
    _call("mount", *texts[:3], ctypes.c_ulong(flags), texts[3])


def _call(name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments!r}: {os.strerror(number)}")
