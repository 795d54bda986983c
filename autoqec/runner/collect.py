"""Collection of the files and events that the untrusted child process of a round left."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.round import PairedCounts
from autoqec.errors import ContractError
from autoqec.runner.spec import EVENTS, RESULT, ChildResult
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout

if TYPE_CHECKING:
    from autoqec.contracts.events import OnEvent, TrainingProgress

MAX_RESULT_BYTES = 65_536
MAX_EVENT_BYTES = 4_096  # per line
MAX_FIGURE = 1e15  # absolute value of a number in an event
SNAPSHOT_NAME = re.compile(r"^(training|finetuning)_(last|itr_\d{1,9})\.pt$")
PHASES = ("training", "finetuning", "evaluating")
COUNT_KEYS = ("budget", *PairedCounts.model_fields)  # val shots counted so far


@dataclass(frozen=True)
class Artifact:
    """A collected file: its name in the round directory, size and hash."""

    name: str
    bytes: int
    sha256: str


class ArtifactRejectedError(Exception):
    """A file of the child is not a regular file, too large, or not what it should contain."""


def artifacts(out_dir: Path, layout: RoundLayout, *, max_bytes: int, snapshots: bool = False) -> list[Artifact]:
    """Copy the files that a round may leave from `out_dir` into the round directory.

    Links are not followed; only regular files with one link are copied.

    Args:
        out_dir: The child's output directory.
        layout: The round directory.
        max_bytes: Limit of all files together.
        snapshots: Also copy the snapshots of a round that left a checkpoint.

    Raises:
        ArtifactRejectedError: A file is not acceptable; nothing was copied.
    """
    found: dict[str, bytes] = {}
    remaining_bytes = max_bytes
    for name in _expected_files(out_dir, snapshots):
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


def _expected_files(out_dir: Path, snapshots: bool) -> list[str]:
    names = ["train.log", "checkpoint.pt", "train/progress.csv"]
    train = out_dir / "train"
    # The last snapshot holds the weights of a training that was cut off; otherwise the checkpoint does.
    snapshots = snapshots or not (out_dir / "checkpoint.pt").exists()
    if snapshots and train.is_dir() and not train.is_symlink():
        names += sorted(f"train/{entry}" for entry in os.listdir(train) if SNAPSHOT_NAME.match(entry))
    return names


def read_regular_file(root: Path, name: str, max_bytes: int) -> bytes | None:
    """Read the regular file `name` below `root`, without following links in any component.

    Returns:
        Its content; None if it does not exist.

    Raises:
        ArtifactRejectedError: It is not a regular file with one link, or larger than `max_bytes`.
    """
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
        raise ArtifactRejectedError(f"`{name}` is not a regular file ({error.strerror})") from error
    finally:
        os.close(directory)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(fd)
        raise ArtifactRejectedError(f"`{name}` is not a regular file with one link")
    with os.fdopen(fd, "rb") as stream:
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ArtifactRejectedError(f"`{name}` exceeds the {max_bytes} bytes that remain of the round's disk limit")
    return data


def result(out_dir: Path) -> ChildResult | None:
    """Read the child's result; None if it left none.

    Raises:
        ArtifactRejectedError: It violates its schema.
    """
    data = read_regular_file(out_dir, RESULT, MAX_RESULT_BYTES)
    if data is None:
        return None
    try:
        return ChildResult.read(json.loads(data), location=RESULT)
    except (ValueError, RecursionError, ContractError) as error:
        raise ArtifactRejectedError(f"`{RESULT}` is invalid: {error}") from error


class EventForwarder:
    """Forwards the child's progress lines as `training` events while it runs."""

    def __init__(self, out_dir: Path, round_idx: int, on_event: OnEvent | None) -> None:
        self._path, self._round, self._on_event = out_dir / EVENTS, round_idx, on_event
        self._position = 0

    def forward(self) -> None:
        """Forward every complete line since the last call; lines that do not parse are skipped."""
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
            event = _parse_progress(line, self._round)
            if event is not None:
                self._on_event(event)


def _parse_progress(line: bytes, round_idx: int) -> TrainingProgress | None:
    """Return the event of one line of the child; a figure that is not one becomes None."""
    from autoqec.contracts.events import TrainingProgress  # which a cluster job, without a receiver, does not need

    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if len(line) > MAX_EVENT_BYTES or not isinstance(event, dict) or event.get("phase") not in PHASES:
        return None
    steps = {key: _figure(event.get(key), int) for key in ("step", "steps")}
    seconds = {key: _figure(event.get(key), int | float) for key in ("loss", "eta_s")}
    counts = {key: _figure(event[key], int) for key in COUNT_KEYS if key in event}
    return TrainingProgress(round=round_idx, phase=event["phase"], **steps, **seconds, **counts)


def _figure(value: Any, types: Any) -> Any:
    """Return the value, or None for another type, NaN, an infinity or a number that arithmetic cannot hold."""
    fits = isinstance(value, types) and not isinstance(value, bool) and abs(value) <= MAX_FIGURE
    return value if fits else None
