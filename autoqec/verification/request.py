"""What to verify (`VerifyRequest`) and what a replay found (`ReplayResult`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.profiles import Profile
from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.verdict import VerifyReport
from autoqec.store.files import parse_env
from autoqec.store.layout import RoundLayout
from autoqec.system import machine
from autoqec.verification.shot_stream import Secret, ShotCache

SHOTS_DIFFER = "shots were not reproduced"  # first words of that difference
SHOWN_DIFFERENCES = 3  # in one line


@dataclass(frozen=True)
class VerifyRequest:
    """One artifact, its round and run, and its place in the run's error budget.

    Attributes:
        env_text: The run's frozen env.yaml.
        secret: The run's secret; in a job the seeds that were derived from it for this candidate.
        config_only: The branch differs from the baseline in predecoder.yaml alone, so only trusted code runs and
            `modules_dir` is ignored.
        modules_dir: The branch's editable modules.
        claimed: The round's metrics; their costs and validation counts are claims to be checked.
        attempt_index: Position in the run's stream of tested attempts, from 1.
        discoveries_before: VERIFIED rounds before this attempt.
        tested_artifacts: Artifact hash -> round, for every artifact that the run tested before this attempt.
        expected_artifact: The hash that was registered; any other is refused.
        parents: Of a composition whose parents are all VERIFIED, the request of each; else empty.
        no_comparison_reason: Why a composition has no parents to compare with.
        shots: Directory of archived shots; a replay reads from it the chunks that this machine samples differently.
        shot_cache: The replay's own; None otherwise.
    """

    env_text: str
    round: RoundLayout
    checkpoint: Path
    dsl_config: Mapping[str, Any]
    secret: Secret
    profile: Profile
    run_id: str
    config_only: bool
    modules_dir: Path | None = None
    round_attempt_id: str | None = None
    branch: str | None = None
    commit_sha: str | None = None
    claimed: RoundMetrics | None = None
    attempt_index: int = 1
    discoveries_before: int = 0
    tested_artifacts: Mapping[str, int] = field(default_factory=dict)
    expected_artifact: str | None = None
    parents: tuple[VerifyRequest, ...] = ()
    no_comparison_reason: str | None = None
    shots: Path | None = None
    shot_cache: ShotCache | None = None

    @property
    def branch_modules(self) -> Path | None:
        """The editable modules that run: the branch's own, or None for those of the trusted package."""
        return None if self.config_only else self.modules_dir

    @cached_property
    def env(self) -> EnvSpec:
        """`env_text`, parsed once."""
        return parse_env(self.env_text, location="the run's env")

    @cached_property
    def env_sha256(self) -> str:
        """SHA-256 of `env_text`."""
        return sha256_bytes(self.env_text.encode())

    @cached_property
    def dsl(self) -> PredecoderDSL:
        """`dsl_config`, parsed once."""
        return parse_dsl(dict(self.dsl_config), location=str(self.round.config))

    def for_replay(self, saved_report: VerifyReport, shot_cache: ShotCache) -> VerifyRequest:
        """Return the request that repeats a saved report."""
        return replace(
            self,
            expected_artifact=saved_report.artifact_sha256,
            # A parent that was verified after this round was not compared with it.
            parents=self.parents if saved_report.composition else (),
            shot_cache=shot_cache,
        )


@dataclass(frozen=True)
class ReplayResult:
    """A verification repeated from the same secret.

    Attributes:
        report: The report of the repetition.
        differences: One line per difference from the saved report; empty if they agree.
        n_redrawn: Chunks of shots that were sampled identically.
        n_from_cache: Chunks that had to be read from the archive.
        saved_cpu: Processor of the saved report; None if it is not known.
    """

    report: VerifyReport
    differences: tuple[str, ...]
    n_redrawn: int
    n_from_cache: int
    saved_cpu: str | None = None

    @property
    def agrees(self) -> bool:
        """Whether the saved report was reproduced."""
        return not self.differences

    @property
    def likely_cause(self) -> str | None:
        """Return what may explain differences on the same shots; None if nothing is known.

        Rounding errors of a network differ between processors, and decide some predictions of belief propagation with
        post-processing, however small they are.
        """
        cpu = self.report.cost and self.report.cost.cpu_model
        other_shots = any(line.startswith(SHOTS_DIFFER) for line in self.differences)
        if not self.differences or other_shots or self.report.backend == "mwpm" or None in (cpu, self.saved_cpu):
            return None
        if cpu == self.saved_cpu:
            return None
        return (
            f"the report was made on {self.saved_cpu}, this is {cpu}: rounding errors of the network differ and "
            f"change some predictions of {self.report.backend} (guard batch_independence says how many)"
        )

    @property
    def disagreement(self) -> str:
        """Describe the differences in one line: the verdict, the first of them, and what may explain them."""
        shown = "; ".join(self.differences[:SHOWN_DIFFERENCES])
        left = len(self.differences) - SHOWN_DIFFERENCES
        more = f"; and {left} more" if left > 0 else ""
        cause = f". Likely cause: {self.likely_cause}" if self.likely_cause else ""
        return f"the verdict is {self.report.verdict}, but {shown}{more}{cause}"

    @property
    def source(self) -> str:
        """Describe where the shots came from."""
        if self.report.recorded is not None:
            return f"{self.report.recorded.blocks} sealed blocks read again from the recorded files"
        if self.n_from_cache:
            from_cache = f"{self.n_from_cache} of {self.n_redrawn + self.n_from_cache} chunks from the archive"
            return f"{from_cache}: stim {machine.versions()['stim']} on this machine samples them differently"
        return f"{self.n_redrawn} chunks redrawn from the run's secret"
