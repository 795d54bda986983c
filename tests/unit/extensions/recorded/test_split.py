"""Division of recorded shots by time, and the copies that rounds may read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autoqec.contracts.events import ShotsRead
from autoqec.errors import UsageError
from autoqec.extensions.recorded import shots as shots_module
from autoqec.extensions.recorded import split as split_module
from autoqec.extensions.recorded.code import RecordedShotsCode
from autoqec.extensions.recorded.env import open_checked
from autoqec.extensions.recorded.shots import Progress, RecordedShots
from autoqec.extensions.recorded.split import EVENTS, OBSERVABLES, Split, VisibleShots, write_visible
from autoqec.qec.sampling import Shots
from autoqec.store.files import load_env
from tests.support.memory import little_memory
from tests.support.recorded import note_chunks, recorded_env


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[RecordedShotsCode, RecordedShots, Shots]:
    """Return the code of an env of two files with 3500 shots each, the shots, and all of them at once."""
    env, _ = load_env(recorded_env(tmp_path_factory.mktemp("split")))
    directory = tmp_path_factory.getbasetemp() / "split0" / "data"
    recorded = open_checked(env, directory)
    parts = [part for block in recorded.layout.blocks for part in recorded.chunks(block)]
    events, flips = (np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0]))
    return RecordedShotsCode.of(env), recorded, Shots(events, flips)


def test_spans_are_disjoint_and_in_the_order_of_time(opened: tuple[RecordedShotsCode, RecordedShots, Shots]) -> None:
    split = Split.of(opened[0])
    parts = [split.part(index) for index in (1, 2)]
    spans = [split.train, split.validation, *(part for part in parts if part is not None)]
    assert spans == [(0, 3500), (3500, 4200), (4200, 5600), (5600, 7000)]
    assert split.part(3) is None


@pytest.mark.parametrize("size", [100, 64, 1400])
def test_a_span_over_two_files_is_read_in_items(
    opened: tuple[RecordedShotsCode, RecordedShots, Shots], size: int
) -> None:
    _, recorded, everything = opened
    items = list(recorded.span((3500, 3500), (3300, 4700), size))
    assert {len(item) for item in items} == {size} and len(items) == 1400 // size
    read = np.concatenate([item.detection_events for item in items])
    assert (read == everything.detection_events[3300 : 3300 + len(read)]).all()
    flips = np.concatenate([item.observables for item in items])
    assert (flips == everything.observables[3300 : 3300 + len(read)]).all()


def test_items_are_read_in_parts_that_do_not_grow_with_them(
    opened: tuple[RecordedShotsCode, RecordedShots, Shots], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, recorded, everything = opened
    monkeypatch.setattr(shots_module, "CHUNK", 64)
    chunks_read = note_chunks(monkeypatch)
    parts = recorded.span((3500, 3500), (0, 2800), 1400, part=300)
    read = [next(parts)]
    assert sum(chunks_read) == 320
    read += parts
    assert [len(part) for part in read] == 2 * [300, 300, 300, 300, 200]
    events = np.concatenate([part.detection_events for part in read])
    assert (events == everything.detection_events[:2800]).all()


def test_shots_around_a_span_are_reported_while_they_are_skipped(
    opened: tuple[RecordedShotsCode, RecordedShots, Shots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All shots of a file are read, to count them; a candidate's part of a large file may be its last hundredth."""
    _, recorded, _ = opened
    monkeypatch.setattr(shots_module, "CHUNK", 500)
    seen: list[ShotsRead] = []
    progress = Progress(seen.append)
    assert len(list(recorded.span((3500, 3500), (5100, 5700), 100, progress=progress))) == 6
    assert {event.what for event in seen} == {"skipping shots of other parts"}
    assert [event.done for event in seen] == [500, 1000, 1500, 2400, 2900]
    assert {event.total for event in seen} == {2900}
    seen.clear()
    list(recorded.span((3500, 3500), (0, 7000), 100, progress=progress))
    assert seen == []


def test_copies_are_written_in_parts(
    opened: tuple[RecordedShotsCode, RecordedShots, Shots], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, recorded, everything = opened
    monkeypatch.setattr(split_module, "CHUNK", 64)
    copied: list[ShotsRead] = []
    write_visible(recorded, code, tmp_path, Progress(copied.append))
    assert [event.done for event in copied[:3]] == [64, 100, 164]
    train = VisibleShots.open(tmp_path, "train", 24, 1).first(4000)
    assert (train.detection_events == everything.detection_events[:3500]).all()


def test_files_outside_a_span_are_not_opened(opened: tuple[RecordedShotsCode, RecordedShots, Shots]) -> None:
    _, recorded, _ = opened
    layout = recorded.layout.model_copy(
        update={"blocks": (recorded.layout.blocks[0].model_copy(update={"detection_events": "absent.b8"}),)}
    )
    layout = layout.model_copy(update={"blocks": (*layout.blocks, recorded.layout.blocks[1])})
    missing = RecordedShots(recorded.directory, layout, recorded.source)
    assert len(list(missing.span((3500, 3500), (3500, 3600), 100))) == 1


def test_another_number_of_shots_is_rejected(opened: tuple[RecordedShotsCode, RecordedShots, Shots]) -> None:
    _, recorded, _ = opened
    with pytest.raises(UsageError, match="holds 3500 shots, the manifest counts 3400"):
        list(recorded.span((3400, 3600), (0, 3400), 100))


def test_rounds_get_training_and_validation_shots_only(
    opened: tuple[RecordedShotsCode, RecordedShots, Shots], tmp_path: Path
) -> None:
    code, recorded, everything = opened
    write_visible(recorded, code, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train", "validation"]
    validation = VisibleShots.open(tmp_path, "validation", 24, 1).first(10_000)
    assert (validation.detection_events == everything.detection_events[3500:4200]).all()
    assert (validation.observables == everything.observables[3500:4200]).all()
    train = VisibleShots.open(tmp_path, "train", 24, 1)
    assert len(train) == 3500
    first, again, other = train.draw(50, 3), train.draw(50, 3), train.draw(50, 4)
    assert (first.detection_events == again.detection_events).all()
    assert (first.detection_events != other.detection_events).any()
    (tmp_path / "train" / "observables.b8").write_bytes(b"")
    with pytest.raises(UsageError, match="does not hold shots"):
        VisibleShots.open(tmp_path, "train", 24, 1)


def test_shots_are_drawn_from_large_copies_in_little_memory(tmp_path: Path) -> None:
    """Pages of a mapped file count as memory of the round's process, which has a limit."""
    (tmp_path / "train").mkdir()
    rows = np.random.default_rng(3).integers(10**8, size=500)
    events, flips = (tmp_path / "train" / name for name in (EVENTS, OBSERVABLES))
    for path, width in ((events, 50), (flips, 1)):
        with path.open("wb") as stream:
            stream.truncate(10**8 * width)  # a sparse file
            for row in rows:
                stream.seek(row * width)
                stream.write(bytes([row % 251]) * width if path == events else b"\1")
    with little_memory(2**26):
        train = VisibleShots.open(tmp_path, "train", 400, 1)
        drawn, first = train.draw(500, seed=3), train.first(20)
    assert (drawn.detection_events == (rows % 251)[:, None]).all() and drawn.observables.all()
    assert len(train) == 10**8 and not first.detection_events.any() and first.observables.shape == (20, 1)


def test_too_few_blocks_are_rejected(opened: tuple[RecordedShotsCode, RecordedShots, Shots]) -> None:
    with pytest.raises(UsageError, match="for each of 2 candidates, which needs 10"):
        Split.of(opened[0].model_copy(update={"block_shots": 200}))


def test_model_estimated_from_more_than_the_training_shots_is_rejected(
    opened: tuple[RecordedShotsCode, RecordedShots, Shots],
) -> None:
    with pytest.raises(UsageError, match="estimated from the first 3500 shots"):
        Split.of(opened[0].model_copy(update={"train": 0.4}))
