"""Trials of a run: checks that code builds and screens of proposals, recorded in trials.jsonl and charged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from autoqec.contracts.base import sha256_json
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.history import Begun
from autoqec.contracts.profiles import profile_of
from autoqec.contracts.round import MAX_LOG_CHARS, RunnerConfig, Trial, utc_now
from autoqec.contracts.views import CoderView
from autoqec.extensions.language_models.clients.deadline import time_not_counted
from autoqec.extensions.language_models.roles.data_blocks import sanitize, sanitize_lines
from autoqec.ideators.proposal_checks import find_equivalent_round
from autoqec.orchestrator.editable_modules import read_modules
from autoqec.store import jsonl
from autoqec.store.jsonl import read_contracts
from autoqec.store.layout import EDITABLE_CONFIG, EDITABLE_MODULES

if TYPE_CHECKING:
    from autoqec.contracts.profiles import Profile
    from autoqec.orchestrator.run import Run

SEED_ROUND = 0  # all trials of a run share one seed, so that they can be compared
_TRACEBACK = "Traceback (most recent call last)"
_CONFIG_NAME = EDITABLE_CONFIG.removeprefix(f"{EDITABLE_MODULES}/")


class Trials:
    """Runs trials for an opened run. A trial that was made before is not repeated.

    Args:
        run: The run.
        attempt: Returns the attempt that is being proposed.
        recorded: trials.jsonl of the run whose cassette is replayed; its results are used again.
    """

    def __init__(self, run: Run, attempt: Callable[[], Begun], recorded: Path | None = None) -> None:
        self._run, self._attempt = run, attempt
        self._code_digests: dict[str, str] = {}
        self._own = {trial.key: trial for trial in read_contracts(run.layout.trials, Trial)}
        self._seconds = sum(trial.seconds for trial in self._own.values())
        self._recorded = {} if recorded is None else {trial.key: trial for trial in read_contracts(recorded, Trial)}

    @property
    def hours(self) -> float:
        """Compute hours of the run's trials."""
        return self._seconds / 3600

    def check(self, view: CoderView, config: dict[str, Any], modules: Mapping[str, str]) -> Trial:
        """Build config and code and take one training step per phase."""
        from autoqec.runner.trial import check_profile

        profile = check_profile(
            profile_of(self._run.info.profile, self._run.info.scale), parse_dsl(config).training.batch_size
        )
        return self._trial("check", config, modules, view.fork_from, 0.0, profile)

    def screen(self, config: dict[str, Any], fork_from: tuple[str, ...], share: float) -> Trial:
        """Train a config, with the code of its first parent, for a share of a round."""
        from autoqec.runner.trial import screen_profile

        modules = read_modules(self._run.repo, self._commit(fork_from[0] if fork_from else None))
        changed = self.code_digest(modules) != self.code_of(None)
        info, shots_share = self._run.info, self._run.env.protocol.shots_share
        profile = screen_profile(profile_of(info.profile, info.scale).scaled(shots_share), share)
        return self._trial("screen", config, modules if changed else {}, fork_from, share, profile)

    def find_duplicate(self, config: dict[str, Any], modules: Mapping[str, str]) -> int | None:
        """Return the recorded round with an equivalent config and the same code; None if there is none."""
        digest, rows = self.code_digest(modules), self._run.memory.state.rounds.values()
        summaries = [found.summary for found in rows]
        finetunes = self._run.env.backend == "mwpm"
        return find_equivalent_round(
            summaries, parse_dsl(config), finetunes, lambda row: self.code_of(row["branch"]) == digest
        )

    def code_of(self, branch: str | None) -> str:
        """Return the digest of a branch's code (None: the baseline's); "" if the branch is gone."""
        commit = self._commit(branch) if branch is None or self._run.repo.rev_parse(branch) else None
        if commit is None:
            return ""
        if commit not in self._code_digests:
            self._code_digests[commit] = self.code_digest(read_modules(self._run.repo, commit))
        return self._code_digests[commit]

    def modules_of(self, branch: str) -> dict[str, str]:
        """Return name -> text of the modules of a branch; "" and a branch that is gone stand for the baseline."""
        return read_modules(self._run.repo, self._commit(branch or None))

    @staticmethod
    def code_digest(modules: Mapping[str, str]) -> str:
        """Return a hash of the modules without the config."""
        return sha256_json({name: text for name, text in modules.items() if name != _CONFIG_NAME})

    def _commit(self, branch: str | None) -> str:
        return (self._run.repo.rev_parse(branch) if branch is not None else None) or self._run.info.baseline_sha

    def _trial(
        self,
        kind: Literal["check", "screen"],
        config: dict[str, Any],
        modules: Mapping[str, str],
        fork_from: tuple[str, ...],
        share: float,
        profile: Profile,
    ) -> Trial:
        """Return the result of a trial: the recorded one, or that of a new one, which is on disk before it is used."""
        run, begun = self._run, self._attempt()
        weights = self._parent_weights(fork_from) if parse_dsl(config).training.init == "parent" else None
        key = sha256_json({
            "kind": kind, "config": config, "code": self.code_digest(modules), "seed": run.round_seed(SEED_ROUND),
            "profile": profile.dump(), "env": run.info.env_yaml_sha256, "threads": run.threads,
            "weights": None if weights is None else hashlib.sha256(weights.read_bytes()).hexdigest(),
        })  # fmt: skip
        if key in self._own:
            return self._own[key]
        trial = self._recorded.get(key)
        if trial is None:
            trial = self._measure(key, kind, config, modules, weights, share, profile)
        trial = trial.model_copy(update={"round": begun.round, "round_attempt_id": begun.round_attempt_id})
        jsonl.append(run.layout.trials, trial.dump())
        self._own[key] = trial
        self._seconds += trial.seconds
        return trial

    def _measure(
        self,
        key: str,
        kind: Literal["check", "screen"],
        config: dict[str, Any],
        modules: Mapping[str, str],
        weights: Path | None,
        share: float,
        profile: Profile,
    ) -> Trial:
        from autoqec.runner.trial import run_trial

        run, begun = self._run, self._attempt()
        runner_config = RunnerConfig(
            env_yaml=run.env_text,
            predecoder_config=config,
            profile=run.info.profile,
            seed=run.round_seed(SEED_ROUND),
            round_dir=str(run.layout.round(begun.round).dir),
            run_id=run.info.run_id,
            round_idx=begun.round,
            parent_checkpoint=None if weights is None else str(weights),
            threads=run.threads,
        )
        with time_not_counted():
            outcome = run_trial(runner_config, profile, modules)
        result, start = outcome.result, outcome.log.rfind(_TRACEBACK)
        return Trial(
            key=key,
            kind=kind,
            round=begun.round,
            round_attempt_id=begun.round_attempt_id,
            share=share,
            status=result.status,
            reason=sanitize(result.reason, 400) or None,
            cause=result.cause,
            log="" if result.status == "ok" or start < 0 else sanitize_lines(outcome.log[start:], MAX_LOG_CHARS),
            n_params=result.n_params,
            flops_per_syndrome=result.flops_per_syndrome,
            train_shots=result.train_shots,
            val=result.val,
            seconds=outcome.seconds,
            at=utc_now(),
        )

    def _parent_weights(self, fork_from: tuple[str, ...]) -> Path | None:
        parents = self._run.memory.state.by_branch(fork_from)
        known = [parents[branch].row.checkpoint_path for branch in fork_from[:1] if branch in parents]
        return self._run.layout.stored(known[0]) if known else None
