"""A seccomp filter of system calls that use uncounted memory or risky parts of the kernel.

No process can remove it again. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

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
