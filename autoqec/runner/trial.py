"""Trials: a config and its code in the round's sandbox for a fraction of a round, without metrics or artifacts."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.profiles import Profile
from autoqec.contracts.round import RunnerConfig
from autoqec.errors import UsageError
from autoqec.runner.round_process import run_in_child
from autoqec.runner.spec import ChildResult
from autoqec.runner.training import FINETUNE_BATCH
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout

CHECK_VAL_SHOTS = 256
CHECK_WALLCLOCK_S = 120
SCREEN_VAL_SHARE = 1 / 4


@dataclass(frozen=True)
class TrialOutcome:
    """Result of the child process, the end of its output, and how long it took."""

    result: ChildResult
    log: str
    seconds: float


def check_profile(profile: Profile, batch_size: int) -> Profile:
    """Return a profile for one training step per phase and a few validation shots."""
    return profile.model_copy(
        update={
            "train_shots": batch_size,
            "finetune_shots": FINETUNE_BATCH,
            "val_shots": min(CHECK_VAL_SHOTS, profile.val_shots),
            "round_wallclock_s": min(CHECK_WALLCLOCK_S, profile.round_wallclock_s),
        }
    )


def screen_profile(profile: Profile, share: float) -> Profile:
    """Return a profile with this share of the training, and the first quarter of the validation shots."""
    scaled = {name: max(1, round(share * getattr(profile, name))) for name in ("train_gflops", "finetune_shots")}
    return profile.model_copy(
        update={
            **scaled,
            "train_shots": max(1, round(share * profile.train_shots)),
            "val_shots": max(1, round(SCREEN_VAL_SHARE * profile.val_shots)),
        }
    )


def run_trial(config: RunnerConfig, profile: Profile, modules: Mapping[str, str]) -> TrialOutcome:
    """Train and measure a config in a sandboxed child; every failure of it is a result.

    Args:
        config: The round that is being proposed, with the config to try.
        profile: Shots and limits of the trial.
        modules: Name -> text of the editable modules; empty for the package's own.

    Raises:
        UsageError: A name in `modules` leaves the directory.
        InfrastructureError: The child was killed from outside twice.
    """
    directory = RoundLayout(Path(config.round_dir), config.round_idx).trial_dir
    shutil.rmtree(directory, ignore_errors=True)
    atomic.make_dir(directory)
    started = time.monotonic()
    try:
        for name, text in modules.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                raise UsageError(f"{name!r} is not a name of an editable module", location=str(directory))
            target = directory / "modules" / path
            atomic.make_dir(target.parent)
            atomic.write_text(target, text)
        if modules:
            config = config.model_copy(update={"modules_dir": str(directory / "modules")})
        parse_dsl(config.predecoder_config)
        outcome = run_in_child(config, profile, RoundLayout(directory, config.round_idx), None)
        return TrialOutcome(outcome.result, outcome.log_tail, time.monotonic() - started)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
