"""Measurement of cells in SLURM jobs: one array, resumption, jobs that end early, and cancellation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from submitit.core.utils import UncompletedJobError

from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from autoqec.errors import InfrastructureError, UsageError
from autoqec.extensions.board import cluster as board_cluster
from autoqec.extensions.board import job
from autoqec.extensions.board.cluster import job_options, measure_in_jobs
from autoqec.extensions.board.contracts import BoardCircuit, BoardDecoder, BoardMeasurement, BoardOrder
from autoqec.extensions.board.decoders import add_decoders, load_decoders
from autoqec.extensions.board.measure import Plan, measure_cells
from autoqec.extensions.board.results import read_measurements
from autoqec.extensions.slurm import submission as slurm
from autoqec.extensions.slurm.jobs import Polling, WatchedJob
from autoqec.store.layout import BoardLayout
from tests.support.clusters import Cluster, fake_slurm
from tests.support.shown import check_error

FAST = Polling(files_s=0.05, slurm_s=0.3, lag_s=1)
CIRCUIT = "surface_d3_z_depol_p0.005"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    found = fake_slurm(tmp_path / "fake")
    for name, value in found.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(Path(__file__).parent)  # where broken_decoders is found
    yield found
    for number, state in found.jobs().items():
        if state == "PENDING":
            found.ask("scancel", number)


def pairs(board: BoardLayout, circuit: BoardCircuit, *decoders: str) -> list[tuple[BoardCircuit, BoardDecoder]]:
    known = load_decoders(board)
    return [(circuit, known[name]) for name in decoders]


def measure(board: BoardLayout, cells: list[tuple[BoardCircuit, BoardDecoder]], plan: Plan, **more: Any) -> None:
    measure_in_jobs(board, cells, plan, job_options({"mem": "2G"}, plan), polling=FAST, **more)


def counts(board: BoardLayout) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for item in read_measurements(board.results):
        found.setdefault(item.decoder, []).extend(item.failures)
    return found


def test_cells_of_one_array_have_the_counts_of_this_machine(
    cluster: Cluster, board: BoardLayout, circuit: BoardCircuit, tmp_path: Path
) -> None:
    shown: list[BoardMeasurement] = []
    both = pairs(board, circuit, "mwpm", "mwpm_correlated")
    measure(board, both, Plan(2000), on_measured=shown.append)
    here = BoardLayout(tmp_path / "here")
    measure_cells(here, both, Plan(2000))
    assert counts(board) == counts(here) and {item.decoder for item in shown} == {"mwpm", "mwpm_correlated"}
    assert list(cluster.jobs()) == ["1_0", "1_1"] and not list(job.read_orders(board))
    measure(board, both, Plan(2000))
    assert len(cluster.jobs()) == 2, "nothing is left to submit"
    assert [path.name for path in board.jobs.iterdir()] == ["lock"], "the logs of the first call are removed"


def test_jobs_of_a_killed_call_are_awaited_and_not_submitted_again(
    cluster: Cluster, board: BoardLayout, circuit: BoardCircuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(self: board_cluster._Wait, orders: Sequence[BoardOrder]) -> None:
        if orders:
            raise Killed

    cells = pairs(board, circuit, "mwpm")
    with monkeypatch.context() as patch:  # what a killed process leaves: neither cancelled nor withdrawn
        patch.setattr(board_cluster._Wait, "run", die)
        with pytest.raises(Killed):
            measure(board, cells, Plan(1000, again=True))
    assert list(cluster.jobs()) == ["1"] and len(list(job.read_orders(board))) == 1
    measure(board, cells, Plan(1000, again=True))
    assert list(cluster.jobs()) == ["1"] and len(counts(board)["mwpm"]) == 1


def test_job_that_ends_early_is_named_and_the_next_call_continues(
    cluster: Cluster, board: BoardLayout, circuit: BoardCircuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.change(hold=True)
    cells = pairs(board, circuit, "mwpm", "mwpm_correlated")
    ask = WatchedJob.ask

    def cancel_first(self: WatchedJob) -> None:
        """End a job that waits, as an administrator would."""
        if cluster.jobs()["1_0"] == "PENDING":
            cluster.ask("scancel", "1_0")
            cluster.change(hold=False)
        ask(self)

    message = rf"1 of 2 jobs did not finish: {CIRCUIT} mwpm: SLURM job 1_0 ended CANCELLED"
    with monkeypatch.context() as patch, pytest.raises(InfrastructureError, match=message) as error:
        patch.setattr(WatchedJob, "ask", cancel_first)
        measure(board, cells, Plan(1000))
    assert error.value.hint and list(counts(board)) == ["mwpm_correlated"]
    measure(board, cells, Plan(1000))
    assert set(counts(board)) == {"mwpm", "mwpm_correlated"}


def test_failure_of_a_job_is_reported(cluster: Cluster, board: BoardLayout, circuit: BoardCircuit) -> None:
    (decoder,) = add_decoders(board, "broken_decoders:decoders", ["zero"], sandboxed=False)
    plan = Plan(1000)
    measure(board, [(circuit, decoder)], plan)
    assert len(counts(board)["zero"]) == 1, "its module lies in the directory of the call"
    gone = decoder.model_copy(update={"name": "gone"})
    with pytest.raises(InfrastructureError, match="the board no longer has this circuit or decoder"):
        measure(board, [(circuit, gone)], plan)


def test_interrupt_cancels_the_jobs(
    cluster: Cluster, board: BoardLayout, circuit: BoardCircuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.change(hold=True)

    def interrupt(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(WatchedJob, "ask", interrupt)
    with pytest.raises(KeyboardInterrupt):
        measure(board, pairs(board, circuit, "mwpm", "mwpm_correlated"), Plan(1000))
    assert set(cluster.jobs().values()) == {"CANCELLED"} and not list(job.read_orders(board))


def test_withdrawn_order_is_not_measured(board: BoardLayout) -> None:
    job.work(str(board.dir), "autoqec-board-0", 0)
    assert not board.results.exists()


def test_time_limit_keeps_the_measured_blocks(
    board: BoardLayout, circuit: BoardCircuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "submit", lambda *arguments, **more: [])
    order = board_cluster._submit(board, [(circuit.name, "mwpm")], Plan(1000), {"time": "7"})

    def end(*arguments: object, **more: object) -> None:
        raise UncompletedJobError("signal")

    monkeypatch.setattr(job, "measure_cells", end)
    job.work(str(board.dir), order.name, 0)
    result = job.read_result(board, order.name, 0)
    assert result is not None and "time=7" in str(result.error)


def test_two_processes_do_not_submit_for_one_board(cluster: Cluster, board: BoardLayout) -> None:
    with board_cluster._locked(board), pytest.raises(UsageError, match="another process"):
        measure(board, [], Plan(1000))


def test_default_options_exceed_the_limits_of_a_cell() -> None:
    plan = Plan(10_000, timeout_s=60.0)
    found = job_options({"partition": "cpu"}, plan)
    assert slurm.minutes(found["time"]) > 10 and found["partition"] == "cpu" and found["cpus"] == "1"
    assert job_options({"time": "5"}, plan)["time"] == "5"


def test_command_measures_in_jobs(cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["board", "measure", CIRCUIT, "mwpm", "--shots", "1000", "--dir", str(tmp_path / "b"), "--json"]
    assert run_cli(group, [*argv, "--executor", "slurm", "--slurm", "mem=2G"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["reproduced_blocks"] == 1 and row["conflicting_blocks"] == 0, "the packaged counts"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--slurm", "mem=1G"), "needs --executor slurm"),
        (("--executor", "slurm", "--parallel", "1"), "does not apply"),
        (("--executor", "slurm", "--slurm", "speed=9"), "not a job option"),
        (("--executor", "slurm", "--slurm", "partition=none"), "refuses the job"),
    ],
)
def test_unusable_job_options_are_refused(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], text: str
) -> None:
    assert run_cli(group, ["board", "measure", CIRCUIT, "mwpm", "--dir", str(tmp_path / "b"), *more]) == 2
    check_error(capsys.readouterr().err, text, hint=True)
    assert not (tmp_path / "b").exists() and not cluster.jobs()
