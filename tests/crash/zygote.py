"""A process with all imports and the shim loaded, that forks one start per input line: `python -m tests.crash.zygote`.

Input: {workspace, rounds, run_id, cases, recover, verify, die_at, copies, control: {at, mode, sticky}}.
Output: {returncode, count, last, unsynced, others}; others: exit statuses of the further copies.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct
import sys
import traceback
from pathlib import Path
from typing import Any

from autoqec.contracts.events import ignore
from autoqec.orchestrator import failpoint
from autoqec.orchestrator.recovery.apply import reconcile
from autoqec.orchestrator.verify_round import verify_or_replay
from autoqec.store.layout import RunLayout
from autoqec.system.git import Repo
from tests.crash import canned, driver

BLOCK = struct.Struct("<qqqqq4096s256sqq")
ENTRY, ENTRIES = struct.Struct("<QQq512s"), 256
SIZE = BLOCK.size + ENTRIES * ENTRY.size
PR_SET_PDEATHSIG = 1


def attempt(order: dict[str, Any], block: mmap.mmap) -> dict[str, Any]:
    """Fork a child that the control block may kill, and return how it ended."""
    pids = []
    for _ in range(order["copies"]):
        pids.append(os.fork())
        if pids[-1] == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 9)
            os._exit(_start(order, block))
    first, *others = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    count, _, _, _, _, _, last, _, length = BLOCK.unpack(block[: BLOCK.size])
    assert length < ENTRIES, "more files are written and not synced than the shim can list"
    found = [ENTRY.unpack_from(block, BLOCK.size + n * ENTRY.size) for n in range(length)]
    block[: BLOCK.size] = bytes(BLOCK.size)
    return {
        "returncode": first,
        "others": others,
        "count": count,
        "last": _text(last),
        "unsynced": [(_text(path), inode, cut) for _, inode, cut, path in found],
    }


def _text(data: bytes) -> str:
    return data.split(b"\0")[0].decode()


def _start(order: dict[str, Any], block: mmap.mmap) -> int:
    workspace, control = Path(order["workspace"]), order["control"]
    named = (control["at"], control["mode"], control["sticky"], os.getpid())
    block[: BLOCK.size] = BLOCK.pack(0, *named, str(workspace).encode(), b"", 0, 0)
    if order["die_at"]:
        os.environ[failpoint.FAILPOINT_VARIABLE] = order["die_at"]
    try:
        if order["recover"]:
            reconcile(RunLayout(workspace, order["run_id"]), Repo.discover(workspace))
            return 0
        if order["verify"]:
            verify_or_replay(RunLayout(workspace, order["run_id"]), Repo.discover(workspace), order["verify"], ignore)
            return 0
        analyst = None if "quiet" in order["cases"] else canned.analyse
        return driver.main(workspace, order["rounds"], order["run_id"], set(order["cases"]), analyst=analyst)
    except BaseException as error:
        traceback.print_exception(error)
        return int(getattr(error, "exit_code", 70))


def main(control: str) -> None:
    import autoqec.ideators.analyst
    import autoqec.qec.stats
    import autoqec.runner.provenance  # noqa: F401  so that no fork imports it

    canned.install()
    with open(control, "r+b") as stream:
        block = mmap.mmap(stream.fileno(), SIZE)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(attempt(json.loads(line), block)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
