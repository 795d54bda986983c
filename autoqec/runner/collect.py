"""Taking what the child left, believing nothing about it but bytes."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.verdict import PairedCounts
from autoqec.errors import ContractError
from autoqec.runner.spec import EVENTS, RESULT, ChildResult
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout

MAX_RESULT_BYTES = 65_536
MAX_EVENT_BYTES = 4_096  # one line
MAX_FIGURE = 1e15  # of a figure in it
SNAPSHOT_NAME = re.compile(r"^(training|finetuning)_(last|itr_\d{1,9})\.pt$")
PHASES = ("training", "finetuning", "evaluating")
COUNT_KEYS = ("budget", *PairedCounts.model_fields)  # of val shots, as they come in

OnEvent = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class Artifact:
    """A file of the round directory, as it was collected."""

    name: str
    bytes: int
    sha256: str


class ArtifactRejectedError(Exception):
    """The child left something in place of a file that is no plain file of sane size."""


def artifacts(out_dir: Path, layout: RoundLayout, *, max_bytes: int) -> list[Artifact]:
    """Copy the files a round may leave from `out_dir` into the round directory; at most `max_bytes` together.

    Links are not followed, only regular files with one name are taken. Raises Refused before anything is copied.
    """
    found: dict[str, bytes] = {}
    remaining_bytes = max_bytes
    for name in _expected_files(out_dir):
        data = read_regular_file(out_dir, name, remaining_bytes)
        if data is not None:
            found[name] = data
            remaining_bytes -= len(data)
    kept = []
    for name, data in found.items():
        target = layout.dir / name
        atomic.make_dir(target.parent)
        atomic.write_bytes(target, data)
        kept.append(Artifact(name, len(data), sha256_bytes(data)))
    return kept


def _expected_files(out_dir: Path) -> list[str]:
    names = ["train.log", "checkpoint.pt", "train/progress.csv"]
    train = out_dir / "train"
    # The last weights matter where training was cut short; a checkpoint stands for them otherwise.
    if not (out_dir / "checkpoint.pt").exists() and train.is_dir() and not train.is_symlink():
        names += sorted(f"train/{entry}" for entry in os.listdir(train) if SNAPSHOT_NAME.match(entry))
    return names


def read_regular_file(root: Path, name: str, max_bytes: int) -> bytes | None:
    """Bytes of the regular file `name` below `root`, None where there is none. No component may be a link."""
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *folders, last = name.split("/")
        for folder in folders:
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            os.close(directory)
            directory = inner
        fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ArtifactRejectedError(f"`{name}` is no plain file ({error.strerror})") from error
    finally:
        os.close(directory)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(fd)
        raise ArtifactRejectedError(f"`{name}` is no plain file")
    with os.fdopen(fd, "rb") as stream:
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ArtifactRejectedError(
            f"`{name}` is larger than the {max_bytes} bytes that are left of the round's disk limit"
        )
    return data


def result(out_dir: Path) -> ChildResult | None:
    """What the child says, None where it left nothing. Raises Refused where it can't be read as its contract."""
    data = read_regular_file(out_dir, RESULT, MAX_RESULT_BYTES)
    if data is None:
        return None
    try:
        return ChildResult.read(json.loads(data), location=RESULT)
    except (ValueError, RecursionError, ContractError) as error:
        raise ArtifactRejectedError(f"`{RESULT}` does not hold what it should: {error}") from error


class EventForwarder:
    """Forwards the child's progress lines as `training` events while it works."""

    def __init__(self, out_dir: Path, round_idx: int, on_event: OnEvent | None) -> None:
        self._path, self._round, self._on_event = out_dir / EVENTS, round_idx, on_event
        self._position = 0

    def forward(self) -> None:
        """Every whole line since the last call. What does not parse is passed over."""
        if self._on_event is None:
            return
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            return
        with os.fdopen(fd, "rb") as stream:
            stream.seek(self._position)
            data = stream.read(16 * MAX_EVENT_BYTES)
        complete_lines = data[: data.rfind(b"\n") + 1]
        self._position += len(complete_lines) or (len(data) if len(data) == 16 * MAX_EVENT_BYTES else 0)
        for line in complete_lines.splitlines():
            event = _event(line)
            if event is not None:
                self._on_event("training", {"round": self._round, **event})


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if len(line) > MAX_EVENT_BYTES or not isinstance(event, dict) or event.get("phase") not in PHASES:
        return None
    progress = {key: _number(event.get(key)) for key in ("step", "steps", "loss", "eta_s")}
    return {"phase": event["phase"], **progress, **{key: _number(event[key]) for key in COUNT_KEYS if key in event}}


def _number(value: Any) -> float | int | None:
    """None for what no honest figure is: NaN, infinities, numbers that arithmetic could not hold."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_FIGURE
    return value if fits else None
