"""Python API: the functions and result objects that `import autoqec` provides.

Results are frozen. Importing this module loads neither torch nor stim; the functions load what they need.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec import locate
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.events import OnEvent, ignore
from autoqec.contracts.history import HistoryRow
from autoqec.contracts.verdict import VerifyReport
from autoqec.reporting import run_report
from autoqec.reporting.run_report import RunReport, outcome
from autoqec.store import files

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval; a bound is None if it was not recorded."""

    estimate: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class RoundResult:
    """One round of a run.

    Attributes:
        round: Number of the round.
        outcome: The verdict; without one, the status, `nominated` or `not nominated`.
        hypothesis: What the round tried.
        branch: Git branch with its config and code; None if it was not created.
        directory: Files of the round, among them `checkpoint.pt`.
        config: Predecoder config.
        delta: LER(baseline decoder) - LER(decoder) per shot on fresh shots; None if it was not verified.
        reduction: Relative reduction of the LER on fresh shots, 0.1 for 10%; None if it was not verified.
        n_params: Number of parameters.
        flops_per_syndrome: Floating-point operations per shot, without the inner decoder.
    """

    round: int
    outcome: str
    hypothesis: str
    branch: str | None
    directory: Path
    config: Mapping[str, Any] | None
    delta: Interval | None
    reduction: Interval | None
    n_params: int | None
    flops_per_syndrome: int | None


@dataclass(frozen=True)
class RunResult:
    """A run, read from its files.

    Attributes:
        run_id: The run id; `resume` takes it.
        directory: Files of the run.
        env_name: Name of the env.
        rounds: Every round, oldest first.
        front: Pareto front of VERIFIED rounds, best first.
        stop_reason: Why this session ended; None if the run was only loaded.
    """

    run_id: str
    directory: Path
    env_name: str
    rounds: tuple[RoundResult, ...]
    front: tuple[RoundResult, ...]
    stop_reason: str | None = None


def load_env(env: str | Path) -> EnvSpec:
    """Load and check an env.

    Args:
        env: Name of a builtin env, or path of an env file.

    Raises:
        UsageError: There is no such env, or the file is invalid.
    """
    return files.load_env(locate.env_file(str(env)))[0]


def run(env: str | Path, *, on_event: OnEvent | None = None, **options: Any) -> RunResult:
    """Search for predecoders in the git repository of the current directory.

    Args:
        env: Name of a builtin env, or path of an env file.
        on_event: Called with every event (`autoqec.contracts.events`).
        **options: Options of `autoqec run`, with underscores: `rounds=3`, `profile="dev"`, `seed=1`, `ideator="tpe"`,
            `budget="hours=2"`, `pin=("type=gnn",)`, `parallel=1`, `threads=1`, ….

    Returns:
        The run after the last round of this session.

    Raises:
        UsageError: An option or the repository is invalid; nothing was written.
        RunInterruptedError: Interrupted during a round; `resume` continues the run.
    """
    return _run(str(env), None, options, on_event)


def resume(run_id: str, *, on_event: OnEvent | None = None, **options: Any) -> RunResult:
    """Recover a run of the repository of the current directory and continue it.

    Args:
        run_id: Run id, or path of the run directory.
        on_event: Called with every event (`autoqec.contracts.events`).
        **options: Settings to change, as for `run`; the others keep their values.

    Raises:
        UsageError: There is no such run, it is in use, or an option contradicts it.
        ManualInterventionRequired: Recovery needs a decision by the user.
        RunInterruptedError: Interrupted during a round.
    """
    return _run(None, str(run_id), options, on_event)


def load_run(run_id: str | Path) -> RunResult:
    """Load a run without changing it.

    Args:
        run_id: Run id in the repository of the current directory, or path of a run directory anywhere.

    Raises:
        UsageError: There is no such run.
        ManualInterventionRequired: Its history is damaged.
    """
    return _result(run_report.load(locate.find_run(str(run_id))))


def verify(round_dir: str | Path, *, on_event: OnEvent | None = None) -> VerifyReport:
    """Verify a round on fresh shots; a verified round is replayed and compared instead.

    Args:
        round_dir: Directory of the round.
        on_event: Called with every event (`autoqec.contracts.events`).

    Raises:
        UsageError: It is not a round directory, or the round cannot be verified.
        ContractError: Files of the round do not belong together, or the replay disagrees with the report.
    """
    from autoqec.orchestrator.verify_round import verify_or_replay
    from autoqec.system.git import Repo

    layout, number = locate.parse_round_dir(Path(round_dir))
    return verify_or_replay(layout, Repo.discover(layout.repo_root), number, on_event or ignore)


def decode(
    checkpoint: str | Path,
    detection_events: np.ndarray,
    *,
    env: str | Path | None = None,
    dem: str | Path | None = None,
    allow_other_dem: bool = False,
    unverified: bool = False,
    trust_code: bool = False,
    threads: int = 1,
) -> np.ndarray:
    """Decode shots with a checkpoint.

    Args:
        checkpoint: A round directory, or a checkpoint.pt.
        detection_events: bool [n_shots, n_detectors], or numbers 0 and 1.
        env: Env of the checkpoint; by default that of its run.
        dem: Detector error model of the shots (.dem or .stim); by default that of the env.
        allow_other_dem: Whether `dem` may have other error mechanisms than the env.
        unverified: Whether to use a checkpoint that is not a verified artifact.
        trust_code: Whether code that the branch changed may run, outside the sandbox.
        threads: Threads that decode parts of the shots in parallel, at most one per core; the predictions are the same.

    Returns:
        Predicted observable flips, bool [n_shots, n_observables].

    Raises:
        UsageError: The checkpoint is not a verified artifact, the shots do not fit its env, there are more threads
            than cores, or the memory does not suffice.
        ContractError: The checkpoint is invalid, or its outputs are not finite.
    """
    import numpy as np

    from autoqec.decoders.decode_memory import decoding_size, require_decode_memory
    from autoqec.decoders.decoding import CheckpointDecoder, check_fit, read_model
    from autoqec.decoders.shot_check import check_shots
    from autoqec.decoders.threads import check_threads, decode_array, decoders_needed
    from autoqec.errors import UsageError
    from autoqec.orchestrator.checkpoints import open_checkpoint
    from autoqec.qec.diagnosis import describe_mismatch
    from autoqec.qec.weighted_mwpm import missing_extension

    check_threads(threads, "threads")
    env_name = None if env is None else str(env)
    with open_checkpoint(Path(checkpoint), env_name, trust_code=trust_code, unverified=unverified) as opened:
        if (slower := missing_extension(opened.env.backend)) is not None:
            warnings.warn(slower, RuntimeWarning, stacklevel=2)
        model = None if dem is None else read_model(Path(dem), opened.env)
        check_fit(opened.env, opened.path, model)
        events = np.asarray(detection_events)
        n_shots = len(np.atleast_1d(events))
        n_decoders = decoders_needed(threads, n_shots)
        require_decode_memory(decoding_size(opened.env, model), n_decoders, n_shots)
        decoders = [
            CheckpointDecoder.of(opened.env, opened.path, model, allow_other_dem=allow_other_dem)
            for _ in range(n_decoders)
        ]
        n_detectors = decoders[0].problem.n_detectors
        if events.ndim != 2 or events.shape[1] != n_detectors:
            message = f"shape {events.shape} is not (n_shots, {n_detectors})"
            hint = "unpack bit-packed shots with np.unpackbits(shots, axis=1, count=n_detectors, bitorder='little')"
            raise UsageError(message, location="detection_events", hint=hint)
        if events.dtype != bool and not ((events == 0) | (events == 1)).all():
            hint = "pass one value per detector: 1 if it fired, else 0"
            raise UsageError("holds values other than 0 and 1", location="detection_events", hint=hint)
        packed = np.packbits(events.astype(bool), axis=1, bitorder="little")
        for found in check_shots(decoders[0], packed) or []:
            warnings.warn(describe_mismatch(found), RuntimeWarning, stacklevel=2)
        return decode_array(decoders, packed)


def _run(env: str | None, resumed: str | None, given: Mapping[str, Any], on_event: OnEvent | None) -> RunResult:
    from autoqec.orchestrator.plugin_protocols import executor_plugins
    from autoqec.orchestrator.run_checks import check
    from autoqec.orchestrator.run_options import request_run
    from autoqec.orchestrator.session import run_session

    on_event = on_event or ignore
    checked = check(request_run(env, given, resumed), on_event)
    for plugin in executor_plugins():
        plugin.require_here(checked.request.spec)
    session = run_session(checked, on_event)
    return _result(run_report.load(session.layout), session.outcome.stop_reason)


def _result(report: RunReport, stop_reason: str | None = None) -> RunResult:
    results = {entry.key: _round_result(report, entry.row) for entry in report.rounds}
    return RunResult(
        run_id=report.id,
        directory=report.layout.root,
        env_name=report.info.env_name,
        rounds=tuple(results.values()),
        front=tuple(results[entry.key] for entry in report.front),
        stop_reason=stop_reason,
    )


def _round_result(report: RunReport, row: HistoryRow) -> RoundResult:
    return RoundResult(
        round=row.round,
        outcome=outcome(row),
        hypothesis=row.hypothesis,
        branch=row.branch,
        directory=report.layout.round(row.round).dir,
        config=row.dsl_config,
        delta=_interval(row.delta_vs_baseline_holdout, row.delta_holdout_low, row.delta_holdout_high),
        reduction=_interval(row.relative_holdout, row.relative_holdout_low, row.relative_holdout_high),
        n_params=row.judge_n_params or row.n_params,
        flops_per_syndrome=row.judge_flops_per_syndrome or row.flops_per_syndrome,
    )


def _interval(estimate: float | None, low: float | None, high: float | None) -> Interval | None:
    return None if estimate is None else Interval(estimate, low, high)


__all__ = ["Interval", "RoundResult", "RunResult", "decode", "load_env", "load_run", "resume", "run", "verify"]
