"""The user that a program runs as: its own if root starts it, and never one that gains privileges."""

import ctypes
import os
import socket

FIRST_USER, USERS = 61_200, 4_096
"""systemd reserves these for dynamic users, so none of them owns a file or another process."""
PR_SET_NO_NEW_PRIVS = 38


def claim_user() -> tuple[int, socket.socket | None]:
    """A user that no other program of this machine runs as, and a socket that reserves it until it is closed.

    0 if this process is not root's: the program then runs as this process's user. The reservation is an
    abstract socket name: the kernel assigns it once, and frees it when the owner has ended.
    """
    if os.geteuid() != 0:
        return 0, None
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    begin = os.getpid()
    for number in range(USERS):
        user = FIRST_USER + (begin + number) % USERS
        try:
            claim.bind(f"\0staleflow-sandbox-user-{user}")
        except OSError:
            continue
        return user, claim
    raise OSError(f"All {USERS} users from {FIRST_USER} on that sandboxes may have are taken.")


def gain_no_privileges() -> None:
    """Prevent setuid programs from changing the user."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS) failed")
