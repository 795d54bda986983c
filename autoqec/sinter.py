"""Predecoders as sinter decoders: `sinter collect --custom_decoders_module_function 'autoqec.sinter:decoders' ...`

Every VERIFIED round of the runs below the current directory is `autoqec:<run_id>:<round>`.
https://github.com/quantumlib/Stim/tree/main/glue/sample
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sinter
import stim
import torch

from autoqec.contracts.env import EnvSpec
from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.errors import UsageError
from autoqec.orchestrator.editable_modules import checked_out_modules
from autoqec.qec.sampling import pack
from autoqec.store.files import load_env
from autoqec.store.history import History
from autoqec.store.layout import RunLayout, runs_dir

CHECKPOINTS_ENV_VAR = "AUTOQEC_CHECKPOINTS"


def decoders() -> dict[str, sinter.Decoder]:
    """Decoders by name: what sinter asks for.

    `autoqec:<run_id>:<round>` for VERIFIED rounds below `runs/`; from AUTOQEC_CHECKPOINTS, a comma-separated list
    of `name=ENV.yaml=CHECKPOINT.pt`, the named ones; and `mwpm_correlated`, which sinter has no name for.
    """
    found: dict[str, sinter.Decoder] = {"mwpm_correlated": CorrelatedMatchingDecoder()}
    for run in sorted(runs_dir(Path.cwd()).glob("*/run.json")):
        layout = RunLayout(Path.cwd(), run.parent.name)
        for row in History(layout).rows():
            if row.verify_verdict == "VERIFIED":
                path = layout.round(row.round).checkpoint
                decoder = PredecoderDecoder(
                    str(layout.env), str(path), (str(layout.repo_root), layout.run_id, row.round)
                )
                found[f"autoqec:{layout.run_id}:{row.round}"] = decoder
    for entry in filter(None, os.environ.get(CHECKPOINTS_ENV_VAR, "").split(",")):
        name, _, files = entry.partition("=")
        env, _, path_text = files.partition("=")
        if not (name and env and path_text):
            raise UsageError(
                f"{entry!r} is not name=ENV.yaml=CHECKPOINT.pt", location=f"environment variable {CHECKPOINTS_ENV_VAR}"
            )
        found[name] = PredecoderDecoder(env, path_text)
    return found


@dataclass(frozen=True)
class PredecoderDecoder(sinter.Decoder):  # type: ignore[misc]
    """A checkpoint and the env it was made for; paths, so that workers load their own copy.

    of_round: repository, run and round, where it was made in a run. UsageError where the round's branch has code of
    its own: only a person may let that run.
    """

    env_path: str
    checkpoint_path: str
    round_ref: tuple[str, str, int] | None = None

    def compile_decoder_for_dem(self, *, dem: stim.DetectorErrorModel) -> sinter.CompiledDecoder:
        if self.round_ref is not None:
            root, run_id, number = self.round_ref
            with checked_out_modules(RunLayout(Path(root), run_id), number) as surface:
                if surface is not None:
                    raise UsageError(
                        f"round {number}'s branch has code of its own, which sinter's workers do not run",
                        location=f"run {run_id}",
                        hint=f"read it, then autoqec decode {Path(self.checkpoint_path).parent} --trust-code …",
                    )
        env, _ = load_env(Path(self.env_path))
        return CompiledPredecoder.of(env, Path(self.checkpoint_path), dem)


class CorrelatedMatchingDecoder(sinter.Decoder):  # type: ignore[misc]
    """PyMatching's correlated matching."""

    def compile_decoder_for_dem(self, *, dem: stim.DetectorErrorModel) -> sinter.CompiledDecoder:
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
    """Predecoder and backend on one detector error model: another p moves the priors, another circuit is refused."""

    def __init__(self, decoding: CheckpointDecoder) -> None:
        self.decoding = decoding

    @classmethod
    def of(cls, env: EnvSpec, path: Path, dem: stim.DetectorErrorModel) -> CompiledPredecoder:
        torch.set_num_threads(1)  # sinter runs one worker a core
        return cls(CheckpointDecoder.of(env, path, dem))

    def decode_shots_bit_packed(self, *, bit_packed_detection_event_data: np.ndarray) -> np.ndarray:
        return pack(self.decoding.decode(bit_packed_detection_event_data))
