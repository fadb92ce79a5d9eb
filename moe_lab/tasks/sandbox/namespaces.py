"""A sandbox of Linux namespaces, for machines without bubblewrap: `main` runs in a new interpreter.

Three processes, each the child of the one before: the *keeper* (outside; writes the user map and waits), the *maker*
(enters the namespaces) and the *init* (process 1 of the cage: builds its file system, then forks the two processes of
`inside` and waits for them). When init ends, the kernel ends every process in the sandbox. The user namespace maps the
program to a user id without other processes, since limits on processes do not apply to root.

Needs Linux 5.12 (mount_setattr). Standard library only. Any text on stderr means that the sandbox could not be built.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable

from moe_lab.tasks.sandbox.inside import run_request

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
    """Run the request on stdin (`inside.run_request`) in a sandbox with the paths `shown` alone, read-only."""
    # as in `inside`: the program may be of the same user as init
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
