"""Filter system calls of programs, with namespaces and without.

What it denies to all reaches other processes' memory, namespaces, keys and the kernel's own
machinery. A program of one process has no signals to others, sockets, scheduling and limits of
others, or System V IPC either, and is ended if it starts another process: a tree of processes grows
faster than anybody counts or ends it. Threads it may have. A program that is a tree of processes
needs all that, and has namespaces that keep it inside.

seccomp(2); the program is one of the classic Berkeley packet filter. Nobody takes it off again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping, Sequence

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD, _RETURN = 0x20, 0x06
_JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_IF_SET = 0x15, 0x35, 0x45
_ALLOW, _DENY, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_ABSENT = 0x00050000 | errno.ENOSYS
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_X32 = 0x40000000
"""Bit of x86-64's second set of calls, which has the same numbers."""

_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Numbers of system calls, on x86-64 and on aarch64; None where there is no such call.
_DENIED_ALONE: Mapping[str, tuple[int, int]] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "socket": (41, 198),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "chroot": (161, 51),
    "ioprio_set": (251, 30),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
}
_DENIED: Mapping[str, tuple[int, int]] = {
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "io_uring_setup": (425, 425),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "sched_setaffinity": (203, 122),
    "unshare": (272, 97),
    "setns": (308, 268),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
_FAMILIES = (1, 2, 10, 16)
"""Sockets that a tree may have: of files, of IPv4 and IPv6, and the kernel's lists of both. Some of
the others, such as those between virtual machines, are in no namespace."""
_CLONE3 = (435, 435)
"""clone3, whose flags a filter cannot see; without it the C library takes clone."""

_CLONE, _THREAD = (56, 220), 0x00010000
"""clone makes a thread with this flag, and a process without."""
_FORKS = {"x86_64": (57, 58), "aarch64": ()}
"""Numbers of fork and vfork."""
_FCNTL, _SIGNAL_OWNERS = (72, 25), (8, 10, 15)
"""F_SETOWN, F_SETSIG and F_SETOWN_EX have the kernel send signals to others."""
_IOCTL, _SOCKET_OWNERS = (16, 29), (0x8901, 0x8902)
_PRLIMIT = (302, 261)


def filter_program(*, tree: bool = False) -> bytes:
    """Return the filter for this machine.

    Args:
        tree: the program may start other processes, and has namespaces.

    Raises:
        OSError: its numbers of calls are not known here.
    """
    machine = platform.machine()
    if machine not in _MACHINES:
        raise OSError(f"no filter of system calls for {machine}; there is one for x86_64, aarch64")
    column = list(_MACHINES).index(machine)
    lines = [
        _line(_LOAD, _MACHINE_AT),
        _line(_JUMP_EQUAL, _MACHINES[machine], 1, 0),
        _line(_RETURN, _KILL),
        _line(_LOAD, _NUMBER_AT),
    ]
    if machine == "x86_64":
        lines += [_line(_JUMP_AT_LEAST, _X32, 0, 1), _line(_RETURN, _DENY)]
    denied = _DENIED if tree else {**_DENIED, **_DENIED_ALONE}
    for numbers in denied.values():
        lines += [_line(_JUMP_EQUAL, numbers[column], 0, 1), _line(_RETURN, _DENY)]
    lines += [_line(_JUMP_EQUAL, _CLONE3[column], 0, 1), _line(_RETURN, _ABSENT)]
    if tree:
        lines += _unless_value(_DENIED_ALONE["socket"][column], 0, _FAMILIES)
        return b"".join([*lines, _line(_RETURN, _ALLOW)])
    for number in _FORKS[machine]:
        lines += [_line(_JUMP_EQUAL, number, 0, 1), _line(_RETURN, _KILL)]
    lines += _unless_flag(_CLONE[column], _THREAD)
    lines += _with_values(_FCNTL[column], 1, _SIGNAL_OWNERS)
    lines += _with_values(_IOCTL[column], 1, _SOCKET_OWNERS)
    # A program may change its own limits alone.
    lines += _unless_value(_PRLIMIT[column], 0, (0,))
    return b"".join([*lines, _line(_RETURN, _ALLOW)])


def install(program: bytes) -> None:
    """Put this process under a filter.

    Raises:
        OSError: the kernel has no filters.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    text = ctypes.create_string_buffer(program)
    head = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text))
    forbid_privileges()
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, head, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")


def forbid_privileges() -> None:
    """Deny new privileges, such as set-user-id, to all programs started from now on."""
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _argument(place: int) -> bytes:
    """Load the lower half of an argument; both machines are little-endian."""
    return _line(_LOAD, _FIRST_ARGUMENT_AT + 8 * place)


def _case(number: int, body: list[bytes]) -> list[bytes]:
    """Return the lines for one call; they load the call's number again for those that follow."""
    reload = _line(_LOAD, _NUMBER_AT)
    return [_line(_JUMP_EQUAL, number, 0, len(body) + 1), *body, reload]


def _with_values(number: int, place: int, denied: tuple[int, ...]) -> list[bytes]:
    """Deny a call if an argument is one of some values."""
    tests = [
        line
        for value in denied
        for line in (_line(_JUMP_EQUAL, value, 0, 1), _line(_RETURN, _DENY))
    ]
    return _case(number, [_argument(place), *tests])


def _unless_value(number: int, place: int, allowed: Sequence[int]) -> list[bytes]:
    """Deny a call unless an argument is one of some values."""
    tests = [_line(_JUMP_EQUAL, value, len(allowed) - i) for i, value in enumerate(allowed)]
    tests.append(_line(_RETURN, _DENY))
    return _case(number, [_argument(place), *tests])


def _unless_flag(number: int, flag: int) -> list[bytes]:
    """End a program by a call, unless its first argument has a bit."""
    tests = [_line(_JUMP_IF_SET, flag, 1, 0), _line(_RETURN, _KILL)]
    return _case(number, [_argument(0), *tests])
