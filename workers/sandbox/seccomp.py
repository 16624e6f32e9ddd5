"""The filter of system calls for programs under bubblewrap.

It leaves no way out of the empty network, and keeps the content of sockets within what their number allows:
the supervisor counts only their number.

Invariant: pure. Refused calls return an error, as on a kernel that lacks them; calls that enlarge socket
buffers succeed without effect, as if the kernel allowed no more.
"""

import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Machines (uname) with a filter, and the kernel's numbers of their architectures."""

REFUSED = {
    "add_key": (248, 217), "bpf": (321, 280), "clone3": (435, 435), "fanotify_init": (300, 262),
    "fsmount": (432, 432), "fsopen": (430, 430), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "kcmp": (312, 272), "keyctl": (250, 219), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429),
    "mq_open": (240, 180), "msgget": (68, 186), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "ptrace": (101, 117), "request_key": (249, 218), "semget": (64, 190), "setns": (308, 268),
    "shmget": (29, 194), "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282),
    "vmsplice": (278, 75),
}  # fmt: skip
"""System call numbers on x86_64, and on aarch64.

Memory of memfd_create, shmget, msgget, semget, mq_open and vmsplice is not counted anywhere; clone3 has its
flags in memory, where a filter cannot read them: libraries fall back to clone.
"""
CLONE = (56, 220)
SOCKET = (41, 198)
SOCKETPAIR = (53, 199)
SETSOCKOPT = (54, 208)
SOL_SOCKET = 1
BUFFER_SIZES = (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF, and both with FORCE
NEW_NAMESPACES = 0x7E020000  # cgroup, uts, ipc, user, pid, net and mount: in the flags of clone
FAMILIES = (1, 2, 10)  # unix, and the Internet's, with an empty network: others (vsock) reach a host
X32 = 0x40000000

ALLOW, KILL, DO_NOTHING = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS = 0x00050001, 0x00050026  # SECCOMP_RET_ERRNO | errno
LOAD, EQUAL, GREATER_EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, MACHINE = 0, 4  # offsets in struct seccomp_data
FIRST_ARGUMENT, SECOND_ARGUMENT, THIRD_ARGUMENT = 16, 24, 32


def filter_for(machine: str) -> bytes:
    """The filter in the format of bubblewrap's `--seccomp`; empty for other machines."""
    if machine not in ARCHITECTURES:
        return b""
    column = list(ARCHITECTURES).index(machine)
    code = [
        (LOAD, 0, 0, MACHINE),
        (EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, KILL),  # calls of another architecture have other numbers
        (LOAD, 0, 0, NUMBER),
    ]
    if machine == "x86_64":
        code += [(GREATER_EQUAL, 0, 1, X32), (RETURN, 0, 0, KILL)]
    for numbers in REFUSED.values():
        code += [(EQUAL, 0, 1, numbers[column]), (RETURN, 0, 0, ENOSYS)]
    code += [
        (EQUAL, 0, 4, CLONE[column]),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (ANY_BIT, 0, 1, NEW_NAMESPACES),
        (RETURN, 0, 0, EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    for numbers in (SOCKET, SOCKETPAIR):
        code += [(EQUAL, 0, 3 + len(FAMILIES), numbers[column]), (LOAD, 0, 0, FIRST_ARGUMENT)]
        code += [(EQUAL, len(FAMILIES) - index, 0, family) for index, family in enumerate(FAMILIES)]
        code += [(RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW)]
    code += [
        (EQUAL, 0, 5 + len(BUFFER_SIZES), SETSOCKOPT[column]),
        (LOAD, 0, 0, SECOND_ARGUMENT),
        (EQUAL, 0, 1 + len(BUFFER_SIZES), SOL_SOCKET),
        (LOAD, 0, 0, THIRD_ARGUMENT),
        *((EQUAL, len(BUFFER_SIZES) - index, 0, size) for index, size in enumerate(BUFFER_SIZES)),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, DO_NOTHING),
    ]
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)
