"""Machine snapshot and durations of rounds, also with a failing GPU driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoqec.reporting import machine_state as tool
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from tests.support import rounds


def test_rounds_are_read_from_history_only(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path, rounds.RUN_ID)
    for number in (1, 2, 3):
        layout.round(number).dir.mkdir(parents=True)
    history = History(layout)
    history.append_row(rounds.row(1))
    killed = {"status": "killed_by_safety", "status_reason": "too long", "verify_verdict": None, "n_params": None}
    history.append_row(rounds.row(2, **killed))
    history.append_row(rounds.row(3, train_wallclock_s=7.0))
    state = tool.machine_state(layout.root)
    assert state["params_vs_time"] == [[100, 3.0], [300, 8.0]]
    assert state["killed_by_safety"] == 1
    assert state["predicted_round_s"] == 5.5
    assert [row["round"] for row in state["rounds"]] == [1, 2, 3]
    assert tool.machine_state(layout)["rounds"] == state["rounds"]


def test_times_of_other_devices_predict_nothing() -> None:
    rows = [rounds.row(n, device=device, train_wallclock_s=s) for n, device, s in ((1, "A", 90.0), (2, "B", 7.0))]
    state = tool.round_statistics([*rows, rounds.row(3, train_wallclock_s=9.0)])
    assert state["devices"] == {"A": 1, "B": 1}
    assert state["params_vs_time"] == [[200, 8.0], [300, 10.0]] and state["predicted_round_s"] == 9.0


def test_without_a_run_the_state_describes_the_machine() -> None:
    state = tool.machine_state()
    assert state["machine"] and "rounds" not in state


@pytest.mark.parametrize("step", ["is_available", "mem_get_info", "get_device_name"])
def test_failing_driver_gives_an_empty_snapshot(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def broken(*_: object) -> None:
        raise RuntimeError("the driver is gone")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1, 2))
    monkeypatch.setattr(torch.cuda, step, broken)
    assert tool._gpu_snapshot() == {}
