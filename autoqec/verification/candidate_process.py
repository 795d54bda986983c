"""Start the sandboxed process that evaluates a frozen artifact."""

from __future__ import annotations

import secrets
import shutil
import sys

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.profiles import Profile
from autoqec.installation import IMPORT_DIR
from autoqec.system import sandbox
from autoqec.system.process import child
from autoqec.verification.artifact import FrozenArtifact
from autoqec.verification.candidate import decoder_libraries
from autoqec.verification.candidate.client import CandidateClient

MAX_PROCESS_S = 14 * 24 * 3600.0
DISK_MB = 1.0  # size limit of a candidate's log and of its scratch directory: weights written there are in no count
MAX_OPEN_FILES = 256  # pipes hold memory that is in no account, 64 KiB each
ANSWER_TIMEOUT_S = 300.0  # longest wait for one chunk, however much time is left


def start(
    frozen: FrozenArtifact,
    env_text: str,
    dsl: PredecoderDSL,
    profile: Profile,
    member: tuple[int, float] | None = None,
    *,
    whole_decoder: bool = False,
) -> CandidateClient:
    """Start a candidate process under the profile's limits and send its specification.

    Args:
        frozen: The artifact.
        env_text: The run's env.yaml.
        dsl: The round's config.
        profile: Limits of time and memory.
        member: Index in the env's `other_members` and p of the circuit to decode; None for the env's target.
        whole_decoder: Let it use decoder libraries, to time gate, network and matching in one process; only for an
            artifact without branch code.

    Raises:
        UsageError: The sandbox cannot hide the run from the process.
        ValueError: `whole_decoder` for an artifact with branch code.
    """
    if whole_decoder and frozen.modules_dir:
        raise ValueError("branch code gets no decoder libraries")
    argv = [sys.executable, "-P", "-s", "-m", "autoqec.verification.candidate.process"]
    # Each process has its own copy of the artifact, scratch directory and log, under a name that cannot be guessed:
    # Landlock lets a process stat any path that it knows, so the size of a guessable file could pass on information.
    private = frozen.dir.parent / secrets.token_hex(16)
    artifact, scratch = private / "artifact", private / "scratch"
    shutil.copytree(frozen.dir, artifact)
    scratch.mkdir()
    policy = sandbox.SandboxPolicy(
        read_only=(artifact,),
        hidden_paths=frozen.hidden_paths,
        scratch=scratch,
        hidden=() if whole_decoder else decoder_libraries.files(),
        fork=False,  # CPU time of a process that its parent never waits for would not be counted
        tmp_mb=int(DISK_MB),
        cwd=artifact,
        env={"PYTHONPATH": str(IMPORT_DIR)},  # this package, not another installed one
    )
    wrapped = sandbox.wrap(argv, policy, sandbox_backend=frozen.sandbox_backend)
    # The client limits the time spent waiting for answers; time that the verifier spends decoding must not count.
    limits = child.Limits(
        wallclock_s=MAX_PROCESS_S,
        memory_gb=profile.memory_gb,
        disk_mb=DISK_MB,
        disk_dir=scratch,
        processes=64,
        nofile=MAX_OPEN_FILES,
    )
    process = child.start(wrapped.argv, cwd=artifact, env=wrapped.env, limits=limits, stderr=private / "log")
    client = CandidateClient(process, answer_s=ANSWER_TIMEOUT_S, total_s=profile.judge_wallclock_s)
    client.send_spec(
        {
            "env_text": env_text,
            "member": member,
            "checkpoint": str(artifact / frozen.checkpoint.name),
            "dsl_config": dsl.config(),
            "modules_dir": str(artifact / frozen.modules_dir.name) if frozen.modules_dir else None,
            "whole_decoder": whole_decoder,
        }
    )
    return client
