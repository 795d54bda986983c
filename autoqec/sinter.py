"""Sinter decoders: `sinter collect --custom_decoders_module_function 'autoqec.sinter:decoders' ...`.

Every VERIFIED round of the runs in the current directory is the decoder `autoqec:<run_id>:<round>`, every verified
model of the package `autoqec:<name>`
(https://github.com/quantumlib/Stim/tree/main/glue/sample).
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sinter
import stim
import torch

from autoqec.contracts.env import CORRELATED, EnvSpec
from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.errors import UsageError
from autoqec.models import load_models, model_layout, model_path
from autoqec.orchestrator.editable_modules import checked_out_modules
from autoqec.orchestrator.verify_round import require_verified
from autoqec.qec.sampling import pack
from autoqec.qec.weighted_mwpm import missing_extension
from autoqec.store.files import load_env
from autoqec.store.history import History
from autoqec.store.layout import RunLayout, runs_dir

CHECKPOINTS_ENV_VAR = "AUTOQEC_CHECKPOINTS"


def decoders() -> dict[str, sinter.Decoder]:
    """Return the available decoders by name.

    These are `autoqec:<run_id>:<round>` for VERIFIED rounds in `runs/`; `autoqec:<name>` for the verified models of the
    package (`autoqec models`); those of the environment variable
    AUTOQEC_CHECKPOINTS, a comma-separated list of `name=ENV.yaml=CHECKPOINT.pt`; and `mwpm_correlated`, PyMatching's
    correlated matching.

    Raises:
        UsageError: An entry of AUTOQEC_CHECKPOINTS is malformed.
    """
    if (slower := missing_extension("mwpm")) is not None:  # here, since a warning of each worker would repeat it
        warnings.warn(slower, RuntimeWarning, stacklevel=2)
    by_name: dict[str, sinter.Decoder] = {CORRELATED: CorrelatedMatchingDecoder()}
    for name in load_models():
        layout_of_model = model_layout(name)
        by_name[f"autoqec:{name}"] = PredecoderDecoder(
            str(layout_of_model.env), str(layout_of_model.checkpoint), model=name
        )
    for run in sorted(runs_dir(Path.cwd()).glob("[0-9]*/run.json")):
        layout = RunLayout(Path.cwd(), run.parent.name)
        for row in History(layout).rows():
            if row.verify_verdict == "VERIFIED":
                path = layout.round(row.round).checkpoint
                decoder = PredecoderDecoder(
                    str(layout.env), str(path), (str(layout.repo_root), layout.run_id, row.round)
                )
                by_name[f"autoqec:{layout.run_id}:{row.round}"] = decoder
    for entry in filter(None, os.environ.get(CHECKPOINTS_ENV_VAR, "").split(",")):
        name, _, files = entry.partition("=")
        env, _, path_text = files.partition("=")
        if not (name and env and path_text):
            raise UsageError(
                f"{entry!r} is not name=ENV.yaml=CHECKPOINT.pt", location=f"environment variable {CHECKPOINTS_ENV_VAR}"
            )
        by_name[name] = PredecoderDecoder(env, path_text)
    return by_name


@dataclass(frozen=True)
class PredecoderDecoder(sinter.Decoder):  # type: ignore[misc]
    """A checkpoint and its env, by path, so that every worker of sinter loads its own copy.

    Attributes:
        env_path: The env's file.
        checkpoint_path: The checkpoint.
        round_ref: Repository, run and round of the checkpoint, if it belongs to a run.
        model: Name of the packaged model, whose hash is compared when it is loaded.
    """

    env_path: str
    checkpoint_path: str
    round_ref: tuple[str, str, int] | None = None
    model: str | None = None

    def compile_decoder_for_dem(self, *, dem: stim.DetectorErrorModel) -> sinter.CompiledDecoder:
        """Load the checkpoint for a detector error model.

        Raises:
            UsageError: The round's branch has custom code, which sinter's workers would run outside the sandbox; or the
                checkpoint is not the one that was verified.
            ContractError: The model is not one of the checkpoint's circuit.
        """
        if self.model is not None:
            model_path(self.model)
        if self.round_ref is not None:
            root, run_id, number = self.round_ref
            with checked_out_modules(RunLayout(Path(root), run_id), number) as modules_dir:
                if modules_dir is not None:
                    raise UsageError(
                        f"round {number}'s branch has custom code, which sinter's workers do not run",
                        location=f"run {run_id}",
                        hint=f"review it, then run autoqec decode {Path(self.checkpoint_path).parent} --trust-code …",
                    )
                override = f"list it in {CHECKPOINTS_ENV_VAR} to use it unverified"
                require_verified(
                    RunLayout(Path(root), run_id), number, Path(self.checkpoint_path), None, override=override
                )
        env, _ = load_env(Path(self.env_path))
        return CompiledPredecoder.of(env, Path(self.checkpoint_path), dem)


class CorrelatedMatchingDecoder(sinter.Decoder):  # type: ignore[misc]
    """PyMatching's correlated matching."""

    def compile_decoder_for_dem(self, *, dem: stim.DetectorErrorModel) -> sinter.CompiledDecoder:
        """Build PyMatching's graph with correlations."""
        import pymatching

        return _CompiledCorrelated(pymatching.Matching.from_detector_error_model(dem, enable_correlations=True))


class _CompiledCorrelated(sinter.CompiledDecoder):  # type: ignore[misc]
    def __init__(self, matching: object) -> None:
        self._matching = matching

    def decode_shots_bit_packed(self, *, bit_packed_detection_event_data: np.ndarray) -> np.ndarray:
        predictions = self._matching.decode_batch(  # type: ignore[attr-defined]
            bit_packed_detection_event_data, bit_packed_shots=True, bit_packed_predictions=True,
            enable_correlations=True,
        )  # fmt: skip
        return np.ascontiguousarray(predictions)


class CompiledPredecoder(sinter.CompiledDecoder):  # type: ignore[misc]
    """Predecoder and inner decoder on one detector error model.

    Another error rate shifts the priors. Another circuit is refused, except that translation-invariant weights take
    other distances and numbers of rounds.
    """

    def __init__(self, decoding: CheckpointDecoder) -> None:
        self.decoding = decoding

    @classmethod
    def of(cls, env: EnvSpec, path: Path, dem: stim.DetectorErrorModel) -> CompiledPredecoder:
        """Load a checkpoint for `dem`; sets torch to one thread, because sinter runs one worker per core."""
        torch.set_num_threads(1)
        return cls(CheckpointDecoder.of(env, path, dem))

    def decode_shots_bit_packed(self, *, bit_packed_detection_event_data: np.ndarray) -> np.ndarray:
        """Decode uint8 [n, ceil(n_detectors / 8)] to uint8 [n, ceil(n_observables / 8)], both bit-packed."""
        return pack(self.decoding.decode(bit_packed_detection_event_data))
