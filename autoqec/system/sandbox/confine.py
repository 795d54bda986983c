"""Gives up rights and becomes another program: run by path, standard library only.

    python -I -S confine.py '{"read": [...], "list": [...], "hidden": [...], "write": [...], "devices": [...],
                                "network": false, "cwd": "/", "landlock": true, "seccomp": "HEX"}' -- ARGV...

Landlock (kernel docs, userspace-api/landlock) fences files, TCP, signals and abstract sockets; the
seccomp program (`sandbox.syscalls`) refuses system calls; all capabilities are dropped. This holds for good, for
every process that ARGV starts.
Exits 126 where the kernel refuses: nothing runs half-fenced.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import stat
import struct
import sys

EXIT_REFUSED = 126
SIGNAL_SCOPE = 6  # the first Landlock version that restricts signals
_LIBC = ctypes.CDLL(None, use_errno=True)
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same on every architecture
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_FILTER = 38, 22, 2
_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, _CAPABILITY_VERSION_3 = 24, 47, 4, 0x20080522

# Landlock's file rights, by bit.
_EXECUTE, _WRITE, _READ, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << bit for bit in range(6))
_MAKE_DIR, _MAKE_REG, _REFER, _TRUNCATE, _IOCTL = 1 << 7, 1 << 8, 1 << 13, 1 << 14, 1 << 15
_READING = _EXECUTE | _READ | _READ_DIR
_WRITING = _READ | _READ_DIR | _WRITE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
_FILE_RIGHTS = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15}  # how many file rights that version knows; from 5 on: 16


def main() -> None:
    """Give up rights, then become the program of the command line."""
    policy, argv = json.loads(sys.argv[1]), sys.argv[3:]
    try:
        for name in ("RLIMIT_CORE", "RLIMIT_MSGQUEUE"):
            resource.setrlimit(getattr(resource, name), (0, 0))
        os.chdir(policy["cwd"])
        _check_call(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        if policy["landlock"]:
            _landlock(policy, landlock_version())
        _drop_capabilities()
        _seccomp(bytes.fromhex(policy["seccomp"]))
        os.execvp(argv[0], argv)
    except (OSError, KeyError, IndexError) as error:
        os.write(2, f"sandbox: {error}\n".encode())
    os._exit(EXIT_REFUSED)


def landlock_version() -> int:
    """Return the kernel's Landlock version; 0 if it has none."""
    return int(max(_LIBC.syscall(_LANDLOCK_CREATE, None, 0, 1), 0))


def _landlock(policy: dict[str, list[str]], version: int) -> None:
    if version < 1:
        raise OSError(errno.ENOSYS, "the kernel has no Landlock")
    known_rights = (1 << _RIGHTS_BY_ABI.get(version, 16)) - 1
    network = 0 if policy["network"] or version < 4 else 3
    scoped = 3 if version >= SIGNAL_SCOPE else 0
    attributes = struct.pack("=QQQ", known_rights, network, scoped)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _check_call(_LIBC.syscall(_LANDLOCK_CREATE, attributes, len(attributes), 0), "landlock_create_ruleset")
    for path in policy["read"]:
        _allow_reading(ruleset, os.path.realpath(path), policy["hidden"], known_rights)
    for paths, rights in ((policy["list"], _READ_DIR), (policy["write"], _WRITING)):
        for path in paths:
            _allow(ruleset, path, rights & known_rights)
    for path in ("/dev/null", *policy["devices"]):
        _allow(ruleset, path, (_READ | _WRITE | _IOCTL) & known_rights)
    _check_call(_LIBC.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _allow_reading(ruleset: int, path: str, hidden: list[str], known_rights: int) -> None:
    """Landlock has no rule that takes a right away: each neighbour of a hidden place gets a rule of its own."""
    if path in hidden:
        return
    if not any(position.startswith(path + "/") for position in hidden):
        _allow(ruleset, path, _READING & known_rights)
        return
    _allow(ruleset, path, _READ_DIR & known_rights)
    for entry in os.scandir(path):
        if not entry.is_symlink():  # what it names has a rule where it lies, or none
            _allow_reading(ruleset, entry.path, hidden, known_rights)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _FILE_RIGHTS
        rule = struct.pack("=Qi", rights, fd)
        _check_call(_LIBC.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
    finally:
        os.close(fd)


def _drop_capabilities() -> None:
    """Keep nothing of root but the user id, and nothing to gain by running another program."""
    for capability in range(64):
        if _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # beyond the kernel's last one, or not privileged: then there is nothing to drop
    _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, none = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24)
    _check_call(_LIBC.capset(header, none), "capset")


def _seccomp(program: bytes) -> None:
    code = ctypes.create_string_buffer(program)
    filter_ = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    _check_call(_LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, filter_, 0, 0), "seccomp")


def _check_call(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    main()
