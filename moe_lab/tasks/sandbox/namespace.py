"""The source of a process that enters a user namespace of root's and becomes another program.
Standard library only.

The kernel never limits the number of root's processes, also not under another name in a namespace.
So the namespace has two users: root, as whom bubblewrap sets up the sandbox, and a user without
rights, as whom the program runs.
"""

import ctypes
import os
import sys

CLONE_NEWUSER = 0x10000000


def main(user: str, outside: str, *command: str) -> None:
    """Execute a command as root of a new user namespace, in which `user` is the user `outside` of
    this one."""
    entered, enter = os.pipe()
    process = os.getpid()
    helper = os.fork()
    if helper == 0:  # stays outside: the maps of several users are written there
        os.close(enter)
        os.read(entered, 1)
        users = f"0 0 1\n{user} {outside} 1\n"
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{process}/{name}", "w") as file:
                file.write(users)
        os._exit(0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER) != 0:
        sys.exit(f"no user namespace: {os.strerror(ctypes.get_errno())}")
    os.write(enter, b"1")
    _, status = os.waitpid(helper, 0)
    if status != 0:
        sys.exit(f"no user namespace with the user {outside}")
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")  # the program makes no namespace of its own
    os.execv(command[0], command)


main(*sys.argv[1:])
