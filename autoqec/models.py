"""Verified models in the package: checkpoints that a run of autoqec verified, with the archive that proves it."""

from __future__ import annotations

import json
import zlib
from functools import cache
from pathlib import Path

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.events import OnEvent
from autoqec.contracts.provenance import VerifiedModel
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import ContractError, UsageError, similar_names
from autoqec.store import files
from autoqec.store.layout import PACKAGED_MODELS, ModelLayout, RunLayout
from autoqec.store.round_files import read_contract
from autoqec.system.scratch import scratch

MAX_ARCHIVE_BYTES = 64 * 2**20  # of one model, when its archive is decompressed
GZIP = 31  # wbits of zlib
REINSTALL = "pip install --force-reinstall --no-deps autoqec, or in a checkout: git restore FILE"


@cache
def load_models(directory: Path = PACKAGED_MODELS) -> dict[str, VerifiedModel]:
    """Return the models of the package by name.

    Raises:
        ContractError: A model.json is damaged.
    """
    found = {}
    for path in sorted(directory.glob("*/model.json")):
        try:
            value = json.loads(files.read_text(path))
        except ValueError as error:
            raise ContractError(f"is not JSON ({error})", location=str(path), hint=REINSTALL) from error
        model = VerifiedModel.read(value, location=str(path))
        found[model.name] = model
    return found


def model_layout(name: str, directory: Path = PACKAGED_MODELS) -> ModelLayout:
    """Return the files of a model; UsageError if there is no model of this name."""
    if name not in load_models(directory):
        known = similar_names(name, load_models(directory)) or "none"
        raise UsageError(f"unknown model {name!r}", hint=f"perhaps {known}; autoqec models lists all")
    return ModelLayout(directory / name)


def model_path(name: str, directory: Path = PACKAGED_MODELS) -> Path:
    """Return the checkpoint of a model after comparing its hash and that of its env.

    Raises:
        UsageError: There is no model of this name.
        ContractError: A file is missing or is not the one that was verified.
    """
    layout = model_layout(name, directory)
    _check_hash(layout.checkpoint, load_models(directory)[name].checkpoint_sha256)
    _check_hash(layout.env, model_report(name, directory).env_yaml_sha256)
    return layout.checkpoint


def model_env(name: str, directory: Path = PACKAGED_MODELS) -> EnvSpec:
    """Return the env that a model was verified on."""
    return files.load_env(model_layout(name, directory).env)[0]


def model_report(name: str, directory: Path = PACKAGED_MODELS) -> VerifyReport:
    """Return the verification report of a model."""
    path = model_layout(name, directory).report
    report = read_contract(path, VerifyReport)
    if report is None:
        raise ContractError("the report is missing", location=str(path), hint=REINSTALL)
    return report


def verify_model(name: str, on_event: OnEvent, directory: Path = PACKAGED_MODELS) -> tuple[bool, str]:
    """Repeat the verification of a model from the secret in its archive, offline.

    Returns:
        Whether it agrees with the report, and the result of the round.

    Raises:
        ContractError: Archive or checkpoint are damaged, or the archive holds another checkpoint.
    """
    from autoqec.orchestrator.archive import replay_archive

    model_path(name, directory)
    model = load_models(directory)[name]
    with scratch("model") as place:
        archive = unpack_archive(name, place / "run.tar", directory)
        restored = replay_archive(archive, place / "replay", on_event=on_event)
        checkpoint = RunLayout(place / "replay", model.run_id).round(model.round).checkpoint
        _check_hash(checkpoint, model.checkpoint_sha256)
        return restored.agrees, restored.verdicts.get(model.round, "the archive has no such round")


def unpack_archive(name: str, target: Path, directory: Path = PACKAGED_MODELS) -> Path:
    """Write the archive of a model's run to a new file and return its path.

    Raises:
        ContractError: The compressed archive is missing, damaged or not the one of the run.
    """
    packed = model_layout(name, directory).archive
    decompressor = zlib.decompressobj(wbits=GZIP)
    try:
        content = decompressor.decompress(files.read_bytes(packed), MAX_ARCHIVE_BYTES)
        complete = decompressor.eof and not decompressor.unused_data
    except UsageError as error:
        raise ContractError("is missing", location=str(packed), hint=REINSTALL) from error
    except zlib.error:
        content, complete = b"", False
    expected = load_models(directory)[name].archive_sha256
    if not complete or sha256_bytes(content) != expected:
        message = f"is not the file that was verified: it does not hold the archive {expected[:12]}…"
        raise ContractError(message, location=str(packed), hint=REINSTALL)
    target.write_bytes(content)
    return target


def _check_hash(path: Path, expected: str) -> None:
    """Raise ContractError if a file is missing or differs."""
    try:
        found = sha256_bytes(files.read_bytes(path))
    except UsageError as error:
        raise ContractError("is missing", location=str(path), hint=REINSTALL) from error
    if found != expected:
        message = f"is not the file that was verified: its hash is {found[:12]}…, not {expected[:12]}…"
        raise ContractError(message, location=str(path), hint=REINSTALL)
