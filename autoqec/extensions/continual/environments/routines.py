"""Routines that evaluate drafts: (draft) -> (loss, task_info). Smaller losses are better, +inf is a failure."""

from __future__ import annotations

import json
import math
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from autoqec.contracts.base import sha256_json
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.profiles import Profile, profile_of
from autoqec.contracts.round import PairedCounts
from autoqec.errors import AutoqecError, ContractError, UsageError
from autoqec.extensions.continual.environments.design import PredecoderDraft
from autoqec.extensions.continual.environments.multi import HallOfFame
from autoqec.ideators.space import Config
from autoqec.store import atomic, files, jsonl

RoutineResult = tuple[float, dict[str, Any]]

CONSTRAINT_PENALTY = 1.0  # added to the loss for each limit of the env that a design exceeds tenfold


def loss_of(info: Mapping[str, Any], env: EnvSpec | None = None) -> float:
    """Minus the lower bound of the relative reduction of the logical error rate, plus a penalty for exceeded limits.

    The lower bound is used so that few shots with a lucky outcome do not rank first. A design that failed or was not
    measured has the loss +inf.
    """
    if info.get("status") != "ok" or info.get("relative_low") is None:
        return math.inf
    penalty = 0.0
    if env is not None:
        bounds = (
            (info["n_params"], env.constraints.max_params),
            (info["flops_per_syndrome"], env.constraints.max_flops_per_syndrome),
        )
        penalty = sum(CONSTRAINT_PENALTY * math.log10(value / bound) for value, bound in bounds if value > bound)
    return -float(info["relative_low"]) + penalty


def score_of_loss(loss: float) -> float:
    """Return the score of a loss, higher is better: the lower bound of the relative reduction, clipped to [0, 1]."""
    return min(max(-loss, 0.0), 1.0) if not math.isnan(loss) else 0.0


def paired_task_info(counts: PairedCounts) -> dict[str, Any]:
    """Return a paired measurement as task info."""
    from autoqec.qec.stats import paired_effect

    found = paired_effect(counts)
    return {
        "delta_ler": found.delta,
        "relative": found.relative,
        "relative_low": found.relative_low,
        "relative_high": found.relative_high,
        "val_shots": counts.shots,
        "val_errors_plain": counts.errors_reference,
        "val_errors_predecoder": counts.errors_candidate,
        "val_fixed": counts.fixed,
        "val_broken": counts.broken,
    }


@dataclass(frozen=True)
class TabularRoutine:
    """Looks designs up in a table, and writes the task info into the draft.

    A table is a JSON-lines file of rows with `dsl_config` and the figures of a round, such as `history.jsonl` of a run.

    Attributes:
        rows: Config hash -> task info.
        env: Env whose limits are checked; None checks none.
    """

    rows: Mapping[str, dict[str, Any]]
    env: EnvSpec | None = None
    fidelity: ClassVar[str] = "tabular"

    @classmethod
    def read(cls, path: Path | str, env: EnvSpec | None = None) -> TabularRoutine:
        """Read a table. UsageError for a file that is missing or has no usable row."""
        if not Path(path).is_file():
            raise UsageError("the table does not exist", location=str(path))
        rows: dict[str, dict[str, Any]] = {}
        for row in jsonl.read(path):
            config = row.get("dsl_config")
            try:
                key = parse_dsl(config).sha256() if config else None
            except ContractError:
                continue  # a round whose config was rejected has no design
            if key is not None:
                rows[key] = task_info_of_row(row)
        if not rows:
            raise UsageError("the table has no row with a config", location=str(path))
        return cls(rows, env)

    def __call__(self, draft: PredecoderDraft) -> RoutineResult:
        """Evaluate a draft."""
        try:
            info = dict(self.rows[draft.signature])
        except KeyError:
            info = {"status": "missing", "status_reason": "the table does not contain this design"}
        info |= {"fidelity": self.fidelity, "signature": draft.signature}
        draft.last_task_info = info
        return loss_of(info, self.env), info

    @property
    def configs(self) -> list[Config]:
        """The configs of the table."""
        return [info["dsl_config"] for info in self.rows.values()]

    def best(self) -> float:
        """Return the smallest loss of the table."""
        return min(loss_of(info, self.env) for info in self.rows.values())


def task_info_of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of history as task info, with the paired effect on its validation shots."""
    info = {key: value for key, value in row.items() if value is not None}
    names = ("val_shots", "val_errors_plain", "val_errors_predecoder", "val_fixed", "val_broken")
    if all(name in info for name in names):
        shots, plain, candidate, fixed, broken = (int(info[name]) for name in names)
        counts = PairedCounts(
            shots=shots, errors_reference=plain, errors_candidate=candidate, fixed=fixed, broken=broken
        )
        info |= paired_task_info(counts)
    return info


@dataclass(frozen=True)
class ScreenRoutine:
    """Trains a design briefly in this process, without git. One training runs per process at a time.

    Attributes:
        env_yaml: Text of the env.
        train_shots, finetune_shots, val_shots, train_gflops: Size of the training and the measurement.
        seed: Training seed.
        cache_dir: Directory of cached results, by config and settings; None caches nothing.
    """

    env_yaml: str
    train_shots: int = 60_000
    finetune_shots: int = 1_000
    val_shots: int = 10_000
    train_gflops: int = 200
    seed: int = 0
    cache_dir: str | None = None
    fidelity: ClassVar[str] = "screen"
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @property
    def env(self) -> EnvSpec:
        """The parsed env."""
        return files.parse_env(self.env_yaml, location="env")

    def __call__(self, draft: PredecoderDraft) -> RoutineResult:
        """Evaluate a draft."""
        info = self.measure(draft.config()) | {"signature": draft.signature}
        draft.last_task_info = info
        return loss_of(info, self.env), info

    def measure(self, config: Config) -> dict[str, Any]:
        """Train and measure a config, or read its figures from the cache."""
        key = sha256_json({"config": parse_dsl(config).config(), "screen": self._identity()})
        place = Path(self.cache_dir) / f"{key}.json" if self.cache_dir is not None else None
        with self._lock:
            if place is not None and place.is_file():
                found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
                return found
            info = self._train(config)
            if place is not None:
                atomic.make_dir(place.parent)
                atomic.write_json(place, info)
        return info

    def _identity(self) -> dict[str, Any]:
        """Everything that can change a figure, apart from config and code."""
        names = ("env_yaml", "train_shots", "finetune_shots", "val_shots", "train_gflops", "seed")
        return {name: getattr(self, name) for name in names}

    def _train(self, config: Config) -> dict[str, Any]:
        base = {"dsl_config": parse_dsl(config).config(), "fidelity": self.fidelity}
        try:
            return base | {"status": "ok"} | _train_and_measure(config, self.env, self._profile(), self.seed)
        except AutoqecError as error:
            return base | {"status": getattr(error, "status", "train_error"), "status_reason": str(error)}

    def _profile(self) -> Profile:
        return profile_of("smoke").model_copy(
            update={
                "train_shots": self.train_shots,
                "finetune_shots": self.finetune_shots,
                "val_shots": self.val_shots,
                "train_gflops": self.train_gflops,
            }
        )


def _train_and_measure(config: Config, env: EnvSpec, profile: Profile, seed: int) -> dict[str, Any]:
    """Compile, train and measure on validation shots, as the Runner does. Raises RoundError or ContractError."""
    from autoqec.decoders import flops
    from autoqec.decoders.dsl_compiler import compile_predecoder
    from autoqec.qec.problem import Problem
    from autoqec.runner.evaluate import val_counts
    from autoqec.runner.family import build_agent
    from autoqec.runner.logger import TrainLogger
    from autoqec.runner.training import TrainingBudget, phases, train, training_flops
    from autoqec.store.layout import RoundLayout

    dsl, problem = parse_dsl(config), Problem.from_env(env)
    model = compile_predecoder(dsl, problem, seed=seed)
    cost = flops.count(model, problem.n_detectors)
    agent = build_agent(model, dsl, problem)
    budget = TrainingBudget.of(profile, dsl, training_flops(model, problem.n_detectors))
    with tempfile.TemporaryDirectory(prefix="autoqec-screen-") as place:
        logger = TrainLogger(RoundLayout(Path(place), 0))
        shots = train(agent, phases(problem, dsl, profile, budget, seed), dsl, logger, seed)
    return paired_task_info(val_counts(problem, agent, profile.val_shots)) | {
        "n_params": cost.n_params,
        "flops_per_syndrome": cost.flops_per_syndrome,
        "train_shots": shots,
        "train_seed": seed,
        "final_loss": logger.losses[-1],
        "curve": downsample(logger.losses, 50),
    }


def downsample(losses: list[float], points: int) -> list[float]:
    """Average neighbouring losses to at most `points` values."""
    size = max(1, math.ceil(len(losses) / points))
    parts = [losses[start : start + size] for start in range(0, len(losses), size)]
    return [float(f"{sum(part) / len(part):.6g}") for part in parts]


RunRound = Callable[[Config], Mapping[str, Any]]


@dataclass
class RoundRoutine:
    """Screens a design, and runs a round if it is among the best so far. A design is run once.

    A design without a VERIFIED verdict counts as no gain, whatever its validation shots showed.

    Attributes:
        env: Env of the designs.
        screen: Cheaper routine.
        run_round: Config -> row of history of the round that was run.
        hall_of_fame: Designs that were promoted.
    """

    env: EnvSpec
    screen: Callable[[PredecoderDraft], RoutineResult]
    run_round: RunRound
    hall_of_fame: HallOfFame = field(default_factory=lambda: HallOfFame(1))
    fidelity: ClassVar[str] = "round"
    _lock: ClassVar[threading.Lock] = threading.Lock()  # a repository runs one round at a time
    _rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __call__(self, draft: PredecoderDraft) -> RoutineResult:
        """Evaluate a draft."""
        loss, info = self.screen(draft)
        with self._lock:
            if draft.signature not in self._rows:
                if not self.hall_of_fame.add(draft, loss):
                    return loss, info
                self._rows[draft.signature] = verified_task_info(self.run_round(draft.config()))
        info = self._rows[draft.signature] | {"fidelity": self.fidelity, "signature": draft.signature}
        draft.last_task_info = info
        return loss_of(info, self.env), info


def verified_task_info(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of history as task info, with the gain that the verifier measured."""
    info = task_info_of_row(row)
    if info.get("verify_verdict") == "VERIFIED":
        names = ("relative", "relative_low", "relative_high")
        info |= {name: info.get(name.replace("relative", "relative_holdout")) for name in names}
    elif info.get("relative_low") is not None:
        info["relative_low"] = min(float(info["relative_low"]), 0.0)
    return info
