"""System calls that sandboxed code may not make, and the seccomp filter that refuses them.

The tables are the reference for both sandbox backends: `docs/contracts/sandbox.md` shows them, and
`tests/unit/system/sandbox/test_syscalls.py` makes each call in each backend.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterable

from autoqec.errors import UsageError

Numbers = tuple[int | None, int | None]  # (x86_64, aarch64); None: the architecture has no such call
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of Numbers, AUDIT_ARCH

REFUSED: dict[str, dict[str, Numbers]] = {
    # Landlock does not restrict metadata. Time stamps, modes and attributes also carry notes between processes.
    "file metadata": {
        "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
        "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
        "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
        "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
        "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
        "file_setattr": (469, 469),
    },
    "observing other processes": {
        "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
        "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "statfs": (137, 43), "fstatfs": (138, 44),
        "mincore": (27, 232), "cachestat": (451, 451), "preadv2": (327, 286),
    },
    "scheduling": {
        "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setparam": (142, 118),
        "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    },
    "tracing and memory of others": {
        "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
        "process_madvise": (440, 440), "pidfd_getfd": (438, 438), "kcmp": (312, 272),
        "perf_event_open": (298, 241), "userfaultfd": (323, 282), "bpf": (321, 280),
    },
    "mounts and namespaces": {
        "mount": (165, 40), "umount2": (166, 39), "move_mount": (429, 429), "open_tree": (428, 428),
        "open_tree_attr": (467, 467), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
        "fspick": (433, 433), "mount_setattr": (442, 442), "pivot_root": (155, 41), "chroot": (161, 51),
        "unshare": (272, 97), "setns": (308, 268), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    },
    "devices and the machine": {
        "mknod": (133, None), "mknodat": (259, 33), "iopl": (172, None), "ioperm": (173, None),
        "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
        "quotactl": (179, 60), "quotactl_fd": (443, 443), "settimeofday": (164, 170), "clock_settime": (227, 112),
        "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162),
        "syslog": (103, 116), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
        "finit_module": (313, 273), "delete_module": (176, 106),
    },
    # io_uring does work that seccomp does not see. Keys, queues and semaphores outlive the process.
    "asynchronous I/O and kernel objects": {
        "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
        "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
        "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    },
}  # fmt: skip
SOCKET: dict[str, Numbers] = {"socket": (41, 198)}
# Without Landlock's signal scope a process could signal its parent, so it may signal no process at all.
SIGNALS: dict[str, Numbers] = {
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424),
}  # fmt: skip
# Memory that is no process's resident memory. GPU libraries need it.
UNLESS_GPU: dict[str, Numbers] = {
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194),
}  # fmt: skip
# A program of one process needs no lock between processes; on a readable file it would be a sign to another program.
# The same holds for a pair of sockets, which holds memory that is in no account.
UNLESS_FORK: dict[str, Numbers] = {"fork": (57, None), "vfork": (58, None), "flock": (73, 32), "socketpair": (53, 199)}
# Refused as if the kernel were older: their arguments lie in memory, where a filter cannot read them, and libc has
# another call to fall back to.
NOT_IMPLEMENTED: dict[str, Numbers] = {"clone3": (435, 435), "openat2": (437, 437)}
# The first argument names a process; only 0, the caller itself, is allowed.
ON_ITSELF: dict[str, Numbers] = {
    "prlimit64": (302, 261), "sched_setaffinity": (203, 122), "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip
# Where the file mode stands among the arguments: set-user-ID, set-group-ID and sticky bits are refused.
MODE_ARGUMENT: dict[str, tuple[Numbers, int]] = {
    "open": ((2, None), 2), "creat": ((85, None), 1), "openat": ((257, 56), 3),
}  # fmt: skip
IOCTL, FCNTL, CLONE, PRCTL, MMAP = (16, 29), (72, 25), (56, 220), (157, 167), (9, 222)
# Inode flags, project ids, verity, encryption, freezing: 'f', 'v', 'X', btrfs, f2fs. And typing into a terminal, and
# the owner of a descriptor (FIOSETOWN, SIOCSPGRP), to whom the kernel sends signals.
IOCTL_TYPES, IOCTLS = (0x66, 0x76, 0x58, 0x94, 0xF5), (0x5412, 0x541C, 0x8901, 0x8902)
# F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY, F_SET_RW_HINT, F_SET_FILE_RW_HINT
FCNTLS = (8, 10, 15, 1024, 1026, 1036, 1038)
# Record locks (F_GETLK, F_SETLK, F_SETLKW, F_OFD_*): a read lock on a readable file is a note to another process.
# F_SETPIPE_SZ: the content of a pipe is memory that is in no account.
FCNTLS_UNLESS_FORK = (5, 6, 7, 36, 37, 38, 1031)
PRCTLS = (4,)  # PR_SET_DUMPABLE: changes the owner of the files in /proc/PID, which every process can see
# MAP_SHARED with or without a file: the memory stays while nothing of it is resident. MAP_HUGETLB: it never is.
_MAP_SHARED, _MAP_HUGETLB = 0x01, 0x40000
_SPECIAL_MODE, _CLONE_THREAD = 0o7000, 0x10000
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET, TIME
_IP = (2, 10, 16)  # AF_INET, AF_INET6, and AF_NETLINK, by which a program finds its own interfaces

_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


def filter_program(*, network: bool, loopback: bool, gpu: bool, fork: bool, signals: bool) -> bytes:
    """Return the classic BPF program over `struct seccomp_data` for this machine.

    Args:
        network: Sockets of every kind are allowed.
        loopback: IP sockets are allowed, others are not.
        gpu: Calls that GPU drivers and libraries need are allowed.
        fork: New processes, and what only several processes need, are allowed; threads always are.
        signals: Sending signals is allowed.

    Raises:
        UsageError: There is no table for this machine's architecture.
    """
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise UsageError(f"no table of system calls for {machine}", location="sandbox", hint="use x86_64 or aarch64")
    column, audit = ARCHITECTURES[machine]
    groups = [*REFUSED.values(), {} if gpu else UNLESS_GPU, {} if fork else UNLESS_FORK, {} if signals else SIGNALS]
    if not network and not loopback:
        groups.append(SOCKET)
    out = [_op(_LOAD, 4), _op(_EQUAL, audit, 1, 0), _op(_RETURN, _KILL), _op(_LOAD, 0)]
    if machine == "x86_64":  # the x32 calls: the same kernel functions under other numbers
        out += [_op(_AT_LEAST, 0x40000000, 0, 1), _op(_RETURN, _KILL)]
    out += [op for group in groups for op in _refuse(group, column, errno.EPERM)]
    out += _refuse(NOT_IMPLEMENTED, column, errno.ENOSYS)
    for numbers in ON_ITSELF.values():
        out += _case(numbers[column], _only(0, (0,)))
    if loopback and not network:
        out += _case(SOCKET["socket"][column], _only(0, _IP))
    for numbers, argument in MODE_ARGUMENT.values():
        out += _case(numbers[column], [_argument(argument), _op(_ANY_BIT, _SPECIAL_MODE, 0, 1), _denied()])
    types = [_op(_AND, 0xFF00), *_none_of(kind << 8 for kind in IOCTL_TYPES)]
    out += _case(IOCTL[column], [_argument(1), *_none_of(IOCTLS), *types])
    out += _case(FCNTL[column], [_argument(1), *_none_of(FCNTLS if fork else FCNTLS + FCNTLS_UNLESS_FORK)])
    out += _case(PRCTL[column], [_argument(0), *_none_of(PRCTLS)])
    if not fork and not gpu:
        out += _case(MMAP[column], [_argument(3), _op(_ANY_BIT, _MAP_SHARED | _MAP_HUGETLB, 0, 1), _denied()])
    threads = [] if fork else [_op(_ANY_BIT, _CLONE_THREAD, 1, 0), _denied()]
    out += _case(CLONE[column], [_argument(0), _op(_ANY_BIT, _NEW_NAMESPACES, 0, 1), _denied(), *threads])
    return b"".join([*out, _op(_RETURN, _ALLOW)])


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _denied(number: int = errno.EPERM) -> bytes:
    return _op(_RETURN, _REFUSE | number)


def _argument(index: int) -> bytes:
    """Load the low half of an argument: all that the kernel reads of the ones looked at here."""
    return _op(_LOAD, 16 + 8 * index)


def _refuse(calls: dict[str, Numbers], column: int, number: int) -> list[bytes]:
    known = sorted(found for numbers in calls.values() if (found := numbers[column]) is not None)
    return [op for call in known for op in (_op(_EQUAL, call, 0, 1), _denied(number))]


def _case(call: int | None, body: list[bytes]) -> list[bytes]:
    """`body` for this call alone; what it does not refuse is allowed."""
    return [] if call is None else [_op(_EQUAL, call, 0, len(body) + 1), *body, _op(_RETURN, _ALLOW)]


def _only(index: int, values: tuple[int, ...]) -> list[bytes]:
    """Refuse unless the argument is one of `values`."""
    return [_argument(index), *(_op(_EQUAL, v, len(values) - at, 0) for at, v in enumerate(values)), _denied()]


def _none_of(values: Iterable[int]) -> list[bytes]:
    return [op for value in values for op in (_op(_EQUAL, value, 0, 1), _denied())]
