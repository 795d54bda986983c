"""Gives up rights and becomes another program: run by path, standard library only.

    python -I -S confine.py '{"read": [...], "write": [...], "devices": [...], "network": false, "loopback": false,
                                "gpu": false, "cwd": "/", "landlock": true}' -- ARGV...

Landlock (kernel docs, userspace-api/landlock) fences files, TCP, signals and abstract sockets; seccomp refuses
sockets (of any kind; under `loopback` all but IP's), namespaces, tracing, mounts, kernel doors. Both hold for
everything below, for good.
Exits 126 where the kernel refuses: nothing runs half-fenced.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import stat
import struct
import sys

CANNOT = 126
_LIBC = ctypes.CDLL(None, use_errno=True)
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same on every architecture
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_FILTER = 38, 22, 2

# Landlock's file rights, by bit.
_EXECUTE, _WRITE, _READ, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << bit for bit in range(6))
_MAKE_DIR, _MAKE_REG, _REFER, _TRUNCATE, _IOCTL = 1 << 7, 1 << 8, 1 << 13, 1 << 14, 1 << 15
_READING = _EXECUTE | _READ | _READ_DIR
_WRITING = _READ | _READ_DIR | _WRITE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
_OF_A_FILE = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_RIGHTS_OF_ABI = {1: 13, 2: 14, 3: 15, 4: 15}  # how many file rights that version knows; from 5 on: 16

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SOCKET = (41, 198)
# name: (x86_64, aarch64); None: no such call there.
_CALLS: dict[str, tuple[int | None, int]] = {
    "socket": _SOCKET,
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "mount": (165, 40),
    "umount2": (166, 39),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "mknod": (133, 33),
    "mknodat": (259, 33),
    "iopl": (172, 0xFFFF),
    "ioperm": (173, 0xFFFF),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "setpriority": (141, 140),
    # Queues and semaphores of the kernel outlive a process: a place to leave notes for the next.
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "ioprio_set": (251, 30),
}
# Without Landlock's signal scope a child could signal us: then it may signal nobody.
_SIGNALS: dict[str, tuple[int | None, int]] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
# Memory that counts as nobody's resident memory.
_HIDDEN_MEMORY: dict[str, tuple[int | None, int]] = {"memfd_create": (319, 279), "shmget": (29, 194)}
# Their first argument names a process: any of the same user may be throttled, the judge too. 0 is oneself.
_ON_ONESELF: dict[str, tuple[int, int]] = {
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
_IP = (2, 10, 16)  # AF_INET, AF_INET6, and AF_NETLINK, by which a program finds its own interfaces
_CLONE, _CLONE3 = (56, 220), 435
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET, TIME

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


def main() -> None:
    policy, argv = json.loads(sys.argv[1]), sys.argv[3:]
    try:
        for name in ("RLIMIT_CORE", "RLIMIT_MSGQUEUE"):
            resource.setrlimit(getattr(resource, name), (0, 0))
        os.chdir(policy["cwd"])
        _must(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        version = landlock_version() if policy["landlock"] else 0
        if policy["landlock"]:
            _landlock(policy, version)
        signals_open = not policy["landlock"] or version >= 6
        more = ({} if signals_open else _SIGNALS) | ({} if policy["gpu"] else _HIDDEN_MEMORY)
        _seccomp(more, network=policy["network"], loopback=policy["loopback"])
        os.execvp(argv[0], argv)
    except (OSError, KeyError, IndexError) as error:
        os.write(2, f"sandbox: {error}\n".encode())
    os._exit(CANNOT)


def landlock_version() -> int:
    """The kernel's Landlock version; 0 where there is none."""
    return int(max(_LIBC.syscall(_LANDLOCK_CREATE, None, 0, 1), 0))


def _landlock(policy: dict[str, list[str]], version: int) -> None:
    if version < 1:
        raise OSError(errno.ENOSYS, "the kernel has no Landlock")
    known = (1 << _RIGHTS_OF_ABI.get(version, 16)) - 1
    network = 0 if policy["network"] or version < 4 else 3
    scoped = 3 if version >= 6 else 0
    attributes = struct.pack("=QQQ", known, network, scoped)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _must(_LIBC.syscall(_LANDLOCK_CREATE, attributes, len(attributes), 0), "landlock_create_ruleset")
    for paths, rights in ((policy["read"], _READING), (policy["list"], _READ_DIR), (policy["write"], _WRITING)):
        for path in paths:
            _allow(ruleset, path, rights & known)
    for path in ("/dev/null", *policy["devices"]):
        _allow(ruleset, path, (_READ | _WRITE | _IOCTL) & known)
    _must(_LIBC.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_A_FILE
        rule = struct.pack("=Qi", rights, fd)
        _must(_LIBC.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
    finally:
        os.close(fd)


def _seccomp(more: dict[str, tuple[int | None, int]], *, network: bool, loopback: bool) -> None:
    machine = platform.machine()
    if machine not in _ARCH:
        raise OSError(errno.ENOSYS, f"no table of system calls for {machine}")
    column = 0 if machine == "x86_64" else 1
    sockets = network or loopback
    refused = {numbers[column] for name, numbers in (_CALLS | more).items() if not (sockets and name == "socket")}
    firsts: dict[int, tuple[int, ...]] = {numbers[column]: (0,) for numbers in _ON_ONESELF.values()}
    if loopback and not network:
        firsts[_SOCKET[column]] = _IP
    names = sorted(n for n in refused if n is not None)
    program = _filter(_ARCH[machine], names, firsts, _CLONE[column], machine == "x86_64")
    code = ctypes.create_string_buffer(program)
    filter_ = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    _must(_LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, filter_, 0, 0), "seccomp")


def _filter(arch: int, refused: list[int], firsts: dict[int, tuple[int, ...]], clone: int, x32: bool) -> bytes:
    """Classic BPF over struct seccomp_data {nr, arch, ip, args[6]}. firsts: what a call's first argument may be."""

    def op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    out = [op(_LOAD, 4), op(_EQUAL, arch, 1, 0), op(_RETURN, _KILL), op(_LOAD, 0)]
    if x32:  # the same kernel door under other numbers
        out += [op(_AT_LEAST, 0x40000000, 0, 1), op(_RETURN, _KILL)]
    for number in refused:
        out += [op(_EQUAL, number, 0, 1), op(_RETURN, _REFUSE | errno.EPERM)]
    for number, values in firsts.items():
        out += [op(_EQUAL, number, 0, len(values) + 3), op(_LOAD, 16)]
        out += [op(_EQUAL, value, len(values) - place, 0) for place, value in enumerate(values)]
        out += [op(_RETURN, _REFUSE | errno.EPERM), op(_RETURN, _ALLOW)]
    # clone3's flags lie in memory, out of a filter's sight: refuse it, and libc falls back to clone.
    out += [op(_EQUAL, _CLONE3, 0, 1), op(_RETURN, _REFUSE | errno.ENOSYS)]
    out += [op(_EQUAL, clone, 0, 3), op(_LOAD, 16), op(_ANY_BIT, _NEW_NAMESPACES, 0, 1)]
    out += [op(_RETURN, _REFUSE | errno.EPERM), op(_RETURN, _ALLOW)]
    return b"".join(out)


def _must(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    main()
