"""The only reader and writer of history.jsonl, attempts.jsonl and run.json, from which all other views are derived."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from autoqec.contracts.base import first_validation_error
from autoqec.contracts.history import ATTEMPT_LINE, AlphaSpent, AttemptLine, HistoryRow, RunInfo, SpecChange
from autoqec.contracts.run_spec import RunSpec
from autoqec.errors import ContractError, ManualInterventionRequired, StorageError, UsageError
from autoqec.store import atomic, jsonl
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import AttemptState, RunState, fold, fold_attempts

ATTEMPTS_KEY = "attempts_sha256"  # of a row: hash of the last line of attempts.jsonl when the row was written
_HASH = re.compile(r"[0-9a-f]{64}")
Parsed = TypeVar("Parsed")
State = TypeVar("State", RunState, AttemptState)


class History:
    """The history of one run. Its files only grow, so a call only parses what was appended since the previous call."""

    def __init__(self, layout: RunLayout) -> None:
        self.layout = layout
        self._parsed: dict[Path, _ParsedFile] = {}

    def rows(self) -> list[HistoryRow]:
        """Return the rows of history.jsonl, oldest first.

        An incomplete last line is ignored, unknown keys are kept.

        Raises:
            ManualInterventionRequired: A line is damaged; names the line.
        """
        return self._read(self.layout.history, lambda data, location: HistoryRow.read(data, location=location))

    def attempts(self) -> list[AttemptLine]:
        """Return the lines of attempts.jsonl, oldest first, as `rows`."""
        return self._read(self.layout.attempts, _parse_attempt_line)

    def append_row(self, row: HistoryRow) -> None:
        """Append one row, durably: the commit point of a round.

        Raises:
            ContractError: The round directory does not exist, or the attempt has a row already and this one is not a
                follow-up (`refers_to_attempt`).
        """
        self.append_rows([row])

    def append_rows(self, rows: Sequence[HistoryRow]) -> None:
        """Append several rows, as `append_row`; after a crash a prefix of them is present."""
        closed = set(self.state().rounds)
        for row in rows:
            directory, attempt = self.layout.round(row.round).dir, row.round_attempt_id
            if not directory.is_dir():
                raise ContractError(f"round {row.round} has no directory {directory}", location="history")
            if attempt is not None and row.refers_to_attempt is None:
                if attempt in closed:
                    raise ContractError(f"attempt {attempt} already has a row", location="history")
                closed.add(attempt)
        anchor = {ATTEMPTS_KEY: jsonl.last_hash(self.layout.attempts)}
        values = [row.dump() | anchor for row in rows]
        jsonl.append_all(self.layout.history, values, salvage=self.layout.salvage, chained=True)

    def row_without_its_attempts(self) -> int | None:
        """Return the line of the first row for which attempts.jsonl lost the line that was its last one then.

        The chain of attempts.jsonl shows a line that was changed or removed, but not that its end was cut off or
        replaced.
        """
        self.rows()
        anchors = self._parsed[self.layout.history].anchors
        known = {jsonl.NO_LINE, *jsonl.line_hashes(self.layout.attempts)}  # read last: it may be growing
        return next((number for number, anchor in enumerate(anchors, start=1) if anchor not in known), None)

    def append_attempt(self, line: AttemptLine) -> None:
        """Append a write-ahead line, durably."""
        jsonl.append(self.layout.attempts, line.dump(), salvage=self.layout.salvage, chained=True)

    def register_test(self, line: AlphaSpent) -> None:
        """Append a registered test, durably, and name the line in a second file, so that its loss is noticed.

        Raises:
            ManualInterventionRequired: An earlier registered test is gone, so that its place would be given again.
        """
        if self.lost_registered_test():
            path = self.layout.attempts
            hint = f"restore it from a backup ({self.layout.attempts_head} has the hash of the line), then --resume"
            raise ManualInterventionRequired(
                "the test that was registered last is missing", location=str(path), hint=hint
            )
        self.append_attempt(line)
        atomic.write_text(self.layout.attempts_head, f"{jsonl.last_hash(self.layout.attempts)}\n")

    def lost_registered_test(self) -> bool:
        """Return whether attempts.jsonl lost a line that `register_test` wrote, as by cutting off its end.

        Rows show this only for lines that were written before them.

        Raises:
            ManualInterventionRequired: The file that names the line is damaged.
            StorageError: It cannot be read.
        """
        path = self.layout.attempts_head
        try:
            head = atomic.read_bytes(path).decode(errors="replace").strip()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(f"could not be read: {error.strerror}", location=str(path)) from error
        if not _HASH.fullmatch(head):
            hint = f"restore it from a backup, or delete it if {self.layout.attempts} is complete, then --resume"
            raise ManualInterventionRequired("is not the hash of a line", location=str(path), hint=hint)
        return head not in jsonl.line_hashes(self.layout.attempts)

    def state(self) -> RunState:
        """Return the state derived from the rows."""
        return self._reduced(self.layout.history, self.rows(), fold)

    def attempt_state(self) -> AttemptState:
        """Return the state derived from the write-ahead lines."""
        return self._reduced(self.layout.attempts, self.attempts(), fold_attempts)

    def info(self) -> RunInfo:
        """Return the content of run.json.

        Raises:
            UsageError: The run does not exist.
            ManualInterventionRequired: The file is damaged.
        """
        path = self.layout.run_info
        try:
            return RunInfo.read(json.loads(atomic.read_bytes(path)), location=str(path))
        except FileNotFoundError as error:
            raise UsageError(
                f"no run {self.layout.run_id!r}: {path} does not exist", hint="`autoqec show` lists the runs"
            ) from error
        except (ValueError, ContractError) as error:
            raise _damaged_file_error(error, path) from error
        except OSError as error:
            raise StorageError(f"could not be read: {error.strerror}", location=str(path)) from error

    def write_info(self, info: RunInfo) -> None:
        """Write run.json of a new run. Raises ContractError if it exists."""
        if self.layout.run_info.exists():
            raise ContractError("run.json exists already", location=str(self.layout.run_info))
        atomic.write_json(self.layout.run_info, info.dump())

    def update_spec(self, spec: RunSpec) -> SpecChange | None:
        """Replace the options in run.json that a resume changed; the caller holds the run's lock.

        Returns:
            The recorded change; None if the options are the same.
        """
        info = self.info()
        stored, new = info.settings(), spec.settings()
        changed = {name: new.get(name) for name in stored | new if stored.get(name) != new.get(name)}
        if not changed:
            return None
        change = SpecChange(at=datetime.now(UTC), changed=changed)
        updated = info.model_copy(update={**spec.fields(), "changes": (*info.changes, change)})
        atomic.write_json(self.layout.run_info, updated.dump())
        return change

    def _reduced(self, path: Path, values: list[Parsed], fold: Callable[[list[Parsed]], State]) -> State:
        parsed = self._parsed[path]
        if parsed.state is None:
            parsed.state = fold(values)
        state: State = parsed.state
        return state

    def _read(self, path: Path, parse: Callable[[dict[str, Any], str], Parsed]) -> list[Parsed]:
        parsed = self._parsed.setdefault(path, _ParsedFile())
        identity, size = _identity(path)
        if identity != parsed.identity or size < parsed.end:
            parsed = self._parsed[path] = _ParsedFile(identity=identity)  # restored from a backup, or truncated
        if size > parsed.end:
            try:
                records, end, last = jsonl.read_chained(path, parsed.end, len(parsed.values), parsed.last)
                start = len(parsed.values) + 1
                anchors = [data.pop(ATTEMPTS_KEY, jsonl.NO_LINE) for data in records]
                parsed.values += [parse(data, f"{path}:{number}") for number, data in enumerate(records, start=start)]
                parsed.anchors += anchors
            except ContractError as error:
                raise _damaged_file_error(error, path) from error
            parsed.end, parsed.last, parsed.state = end, last, None
        return list(parsed.values)


@dataclass
class _ParsedFile:
    """Parsed part of a file: up to byte `end` of the inode `identity`, and the state that follows from it, if computed.

    `anchors` are the values of `ATTEMPTS_KEY` in rows, and `last` is the hash of the last line.
    """

    values: list[Any] = field(default_factory=list)
    anchors: list[str] = field(default_factory=list)
    end: int = 0
    identity: tuple[int, int] | None = None
    last: str = jsonl.NO_LINE
    state: Any = None


def _identity(path: Path) -> tuple[tuple[int, int] | None, int]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None, 0
    except OSError as error:
        raise StorageError(f"could not be read: {error.strerror}", location=str(path)) from error
    return (status.st_dev, status.st_ino), status.st_size


def _parse_attempt_line(data: dict[str, Any], location: str) -> AttemptLine:
    try:
        return ATTEMPT_LINE.validate_python(data, extra="allow")
    except ValidationError as error:
        raise ContractError(first_validation_error(error), location=location) from error


def _damaged_file_error(error: Exception, path: Path) -> ManualInterventionRequired:
    message = error.message if isinstance(error, ContractError) else str(error)
    location = error.location if isinstance(error, ContractError) and error.location else str(path)
    hint = f"restore {path} from a backup, or repair that line by hand, then --resume"
    return ManualInterventionRequired(message, location=location, hint=hint)
