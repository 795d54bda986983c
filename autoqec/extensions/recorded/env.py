"""Env of recorded shots: its `code`, the manifest of the files, and the checks before a run uses them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.env import EnvSpec
from autoqec.errors import UsageError
from autoqec.extensions.recorded.check import BlockCheck, check_blocks
from autoqec.extensions.recorded.code import AGAIN, RecordedManifest, RecordedShotsCode
from autoqec.extensions.recorded.decoding import check_predictions
from autoqec.extensions.recorded.estimation import estimate_dem
from autoqec.extensions.recorded.layout import check_files
from autoqec.extensions.recorded.shots import CHUNK, SILENT, Progress, RecordedShots, hash_file
from autoqec.extensions.recorded.split import Split
from autoqec.qec.problem import Problem
from autoqec.store import atomic
from autoqec.store.files import load_yaml, read_text

PART_BLOCKS = 20  # test blocks per candidate, by default


def model_code(recorded: RecordedShots, env_dir: Path) -> dict[str, Any]:
    """Return a field `code` of an env in `env_dir` that samples from the model of recorded shots."""
    path = recorded.directory / recorded.layout.model
    kind = "stim_file" if path.suffix == ".stim" else "dem_file"
    return {"kind": kind, "path": os.path.relpath(path, env_dir), "rounds": recorded.layout.rounds}


def write_models(
    recorded: RecordedShots,
    problem: Problem,
    shots: tuple[int, ...],
    env_file: Path,
    block_shots: int | None = None,
    candidates: int | None = None,
    progress: Progress = SILENT,
) -> RecordedShotsCode:
    """Estimate a model from the training shots, and write it and the manifest beside an env file.

    Args:
        recorded: The shots.
        problem: The env with their model as it was given.
        shots: Shots of each block of files.
        env_file: The env file; its name gives those of the two files.
        block_shots: Shots per block of the test; by default such that each candidate gets `PART_BLOCKS` blocks.
        candidates: Candidates among which the test blocks are divided; None for the contract's default.
        progress: Reports the hashing of the files and the estimate.

    Returns:
        The field `code` of the env, without the contents of the files.

    Raises:
        UsageError: There are too few shots, or the model is too large to be estimated.
    """
    manifest_path, model_path = manifest_path_of(env_file), env_file.with_name(f"{env_file.stem}.estimated.dem")
    more = {} if candidates is None else {"candidates": candidates}
    code = RecordedShotsCode(path=manifest_path.name, rounds=recorded.layout.rounds, block_shots=1, **more)
    sealed = sum(shots) * (1 - code.train - code.validation)
    size = block_shots or max(int(sealed / (PART_BLOCKS * code.candidates)), 1)
    code = code.model_copy(update={"block_shots": size})
    manifest = RecordedManifest(
        directory=os.path.relpath(recorded.directory, env_file.parent),
        layout=recorded.layout,
        shots=shots,
        files=recorded.files(progress),
    )
    trained = Split.of(code.model_copy(update={"manifest": manifest}), str(recorded.directory)).train[1]
    parts = recorded.span(shots, (0, trained), trained, CHUNK, progress)
    model = estimate_dem(problem, (part.detection_events for part in parts), trained, progress)
    text = f"{model}\n"
    named = {"estimated": model_path.name, "estimated_sha256": sha256_bytes(text.encode()), "estimated_shots": trained}
    atomic.write_text(model_path, text)
    atomic.write_json(manifest_path, manifest.model_copy(update=named).dump())
    return code


def read_models(code: RecordedShotsCode, text: str, env_dir: Path) -> tuple[RecordedManifest, str, str]:
    """Read a manifest and the models that it names.

    Args:
        code: The code of an env in `env_dir`.
        text: The content of its manifest.
        env_dir: The directory that its path starts from.

    Returns:
        The manifest, and the texts of the given and of the estimated model.

    Raises:
        UsageError: A model cannot be read, or is not the one that the manifest names.
        ContractError: The manifest is invalid.
    """
    path = env_dir / code.path
    location = str(path)
    manifest = RecordedManifest.read(load_yaml(text, location=location), location=location)
    again = f"restore the file, or {AGAIN}"
    if manifest.estimated is None:
        raise UsageError("names no estimated model", location=location, hint=again)
    known = {file.path: file.sha256 for file in manifest.files}
    models = (
        (path.parent / manifest.directory / manifest.layout.model, known.get(manifest.layout.model)),
        (path.parent / manifest.estimated, manifest.estimated_sha256),
    )
    texts = []
    for file, sha256 in models:
        texts.append(read_text(file, what="model", hint=again))
        if sha256_bytes(texts[-1].encode()) != sha256:
            raise UsageError("is not the model of the manifest", location=str(file), hint=again)
    return manifest, texts[0], texts[1]


def manifest_path_of(env_file: Path) -> Path:
    """Return the path of the manifest of recorded shots beside an env file."""
    return env_file.with_name(f"{env_file.stem}.recorded.json")


def read_manifest(path: Path) -> RecordedManifest:
    """Read a manifest; UsageError or ContractError if it cannot be read."""
    text = read_text(path, what="manifest", hint="check the path")
    return RecordedManifest.read(load_yaml(text, location=str(path)), location=str(path))


def check_hashes(recorded: RecordedShots, manifest: RecordedManifest, hint: str, progress: Progress = SILENT) -> None:
    """Compare the files with the manifest: first all sizes, then all hashes.

    Args:
        recorded: The shots.
        manifest: The manifest.
        hint: Tells the user what to do.
        progress: Reports the hashing.

    Raises:
        UsageError: A file differs.
    """
    for file in manifest.files:  # quick, while hashing reads all files
        path = recorded.directory / file.path
        if path.is_file() and (size := path.stat().st_size) != file.bytes:
            message = f"is not the file of the manifest: {size} bytes, not {file.bytes}"
            raise UsageError(message, location=str(path), hint=hint)
    stored = {file.path: file for file in manifest.files}
    for name in recorded.names:
        path, known = recorded.directory / name, stored.get(name)
        if known is None or hash_file(path, name, progress) != known.sha256:
            raise UsageError("is not the file of the manifest", location=str(path), hint=hint)


def open_checked(env: EnvSpec, directory: Path, hint: str | None = None, progress: Progress = SILENT) -> RecordedShots:
    """Open the recorded shots of a frozen env, after comparing every file with its hash.

    Args:
        env: The env; its shots are recorded.
        directory: Directory of the files.
        hint: What the user can do if a file differs; by default for an env that can still be written again.
        progress: Reports the hashing.

    Raises:
        UsageError: A file is missing or has changed.
    """
    manifest = RecordedShotsCode.of(env).files
    check_files(directory, manifest.layout)
    recorded = RecordedShots(directory, manifest.layout, Problem.from_env(env).source)
    check_hashes(recorded, manifest, hint or f"restore the file, or {AGAIN}", progress)
    return recorded


def preflight(env: EnvSpec, directory: Path, progress: Progress = SILENT) -> RecordedShots:
    """Check recorded shots before a run: hashes, division, and the fit of the visible shots to the given model.

    Sealed shots are not decoded here: `add-env` checked them, and the hashes show that they are the same.

    Raises:
        UsageError: A check failed; a mismatch with the model is named.
    """
    code = RecordedShotsCode.of(env)
    visible = Split.of(code, f"env `{env.name}`, field `code`").validation[1]
    recorded = open_checked(env, directory, progress=progress)
    limits = _visible_shots(code.files.shots, visible)
    checks = check_blocks(recorded, Problem.from_env(env).given, limits=limits, progress=progress)
    require_fit(checks, directory)
    found = tuple(0 if check.counts is None else check.counts.shots for check in checks)
    expected = tuple(count if limit is None else limit for count, limit in zip(code.files.shots, limits, strict=False))
    if found != expected:
        message = f"the visible blocks hold {found} shots, the manifest counts {expected}"
        raise UsageError(message, location=str(directory), hint=AGAIN)
    # Predictions of sealed shots are counted, not scored. Those that are no baseline may be damaged, as in older envs.
    check_predictions(recorded, code.files.shots, env.predicted_by, progress)
    return recorded


def _visible_shots(counts: tuple[int, ...], visible: int) -> list[int | None]:
    """Return for each block with visible shots how many these are; None for all, so that the block's end is checked."""
    limits: list[int | None] = []
    for count in counts:
        if visible <= 0:
            break
        limits.append(None if count <= visible else visible)
        visible -= count
    return limits


def require_fit(checks: list[BlockCheck], directory: Path) -> None:
    """Raise UsageError if a diagnosis is an error."""
    names = {diagnosis.name: None for check in checks for diagnosis in check.diagnoses if diagnosis.error}
    if names:
        raise UsageError(
            f"the shots do not fit their model: {', '.join(names)}",
            location=str(directory),
            hint=f"correct the files or the circuit, then run `autoqec check-data {directory}`",
        )
