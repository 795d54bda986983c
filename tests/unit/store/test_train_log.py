"""train.log: what is written is read back; files from untrusted processes are parsed safely."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from autoqec.store import train_log


def test_written_losses_are_read_back_with_their_steps(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    train_log.append(path, 0, [1.5, 0.25])
    train_log.append(path, 2, [math.nan, math.inf])
    assert path.read_text() == "0\t1.5\n1\t0.25\n2\tnan\n3\tnan\n"
    log = train_log.read(path)
    assert log.entries[:2] == ((0, 1.5), (1, 0.25)) and log.finite == log.entries[:2]
    assert math.isnan(log.losses[2]) and len(log.losses) == 4


@pytest.mark.parametrize("line", [b"loss 3", b"1 2.0", b"\t2.0", b"1\t", b"1\t--e", b"-1\t2", b"1\tinf", b"\xff\xfe"])
def test_malformed_lines_are_skipped(line: bytes) -> None:
    log = train_log.parse(b"0\t3\n" + line + b"\n1\t2\n")
    assert log.entries == ((0, 3.0), (1, 2.0))


def test_loss_beyond_the_range_of_floats_is_not_finite() -> None:
    assert train_log.parse(b"0\t1e999\n1\t2\n").finite == ((1, 2.0),)


def test_unreadable_log_is_empty(tmp_path: Path) -> None:
    assert train_log.read(tmp_path / "missing") == train_log.TrainLog()


def test_large_log_is_sampled_at_even_intervals(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    train_log.append(path, 0, [float(step) for step in range(50_000)])
    entries = train_log.read(path, positions=10).entries
    assert 0 < len(entries) < 1000 and all(loss == step for step, loss in entries)
    steps = [step for step, _ in entries]
    assert steps == sorted(steps) and steps[0] < 5_000 and steps[-1] > 40_000
