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
from autoqec.decoders import checkpoint
from autoqec.errors import ContractError, InputError
from autoqec.qec.backends import make_soft
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import pack, unpack
from autoqec.store.files import load_env
from autoqec.store.history import History
from autoqec.store.layout import RunLayout, runs_dir

CHUNK = 2048  # shots unpacked, run and decoded at once: bounds memory
VARIABLE = "AUTOQEC_CHECKPOINTS"


def decoders() -> dict[str, sinter.Decoder]:
    """Decoders by name: what sinter asks for.

    `autoqec:<run_id>:<round>` for VERIFIED rounds below `runs/`; from AUTOQEC_CHECKPOINTS, a comma-separated list
    of `name=ENV.yaml=CHECKPOINT.pt`, the named ones; and `mwpm_correlated`, which sinter has no name for.
    """
    found: dict[str, sinter.Decoder] = {"mwpm_correlated": Correlated()}
    for run in sorted(runs_dir(Path.cwd()).glob("*/run.json")):
        layout = RunLayout(Path.cwd(), run.parent.name)
        for row in History(layout).rows():
            if row.verify_verdict == "VERIFIED":
                path = layout.round(row.round).checkpoint
                found[f"autoqec:{layout.run_id}:{row.round}"] = Predecoded(str(layout.env), str(path))
    for entry in filter(None, os.environ.get(VARIABLE, "").split(",")):
        name, _, files = entry.partition("=")
        env, _, path_text = files.partition("=")
        if not (name and env and path_text):
            raise InputError(f"{entry!r} is not name=ENV.yaml=CHECKPOINT.pt", where=f"environment variable {VARIABLE}")
        found[name] = Predecoded(env, path_text)
    return found


@dataclass(frozen=True)
class Predecoded(sinter.Decoder):  # type: ignore[misc]
    """A checkpoint and the env it was made for; paths, so that workers load their own copy."""

    env_path: str
    checkpoint_path: str

    def compile_decoder_for_dem(self, *, dem: stim.DetectorErrorModel) -> sinter.CompiledDecoder:
        env, _ = load_env(Path(self.env_path))
        return CompiledPredecoder.of(env, Path(self.checkpoint_path), dem)


class Correlated(sinter.Decoder):  # type: ignore[misc]
    """PyMatching's correlated matching."""

    def compile_decoder_for_dem(self, *, dem: stim.DetectorErrorModel) -> sinter.CompiledDecoder:
        import pymatching

        return _Packed(pymatching.Matching.from_detector_error_model(dem, enable_correlations=True))


class _Packed(sinter.CompiledDecoder):  # type: ignore[misc]
    def __init__(self, matching: object) -> None:
        self._matching = matching

    def decode_shots_bit_packed(self, *, bit_packed_detection_event_data: np.ndarray) -> np.ndarray:
        answers = self._matching.decode_batch(  # type: ignore[attr-defined]
            bit_packed_detection_event_data, bit_packed_shots=True, bit_packed_predictions=True,
            enable_correlations=True,
        )  # fmt: skip
        return np.ascontiguousarray(answers)


class CompiledPredecoder(sinter.CompiledDecoder):  # type: ignore[misc]
    """Predecoder and backend on one detector error model."""

    def __init__(self, problem: Problem, model: torch.nn.Module, shift: np.ndarray) -> None:
        self._problem, self._model, self._shift = problem, model, shift
        self._backend = make_soft(problem, model.output_mode)  # type: ignore[arg-type]

    @classmethod
    def of(cls, env: EnvSpec, path: Path, dem: stim.DetectorErrorModel) -> CompiledPredecoder:
        """For a DEM of the env's circuit at any p: the net's log-odds move by the difference of the priors.

        ContractError naming both sides where the DEM has other mechanisms than the checkpoint's circuit.
        """
        made_for = Problem.from_env(env)
        model, dsl = checkpoint.load(path, made_for)
        torch.set_num_threads(1)  # sinter runs one worker a core
        here = made_for.with_model(dem)
        mine, theirs = (problem.variables(dsl.output_mode) for problem in (made_for, here))
        same = mine.n_edges == theirs.n_edges and not (made_for.H != here.H).nnz and not (made_for.L != here.L).nnz
        if not same:
            raise ContractError(
                f"this detector error model ({here.n_detectors} detectors, {here.n_faults} mechanisms) is not that of "
                f"env `{env.name}` ({made_for.n_detectors} detectors, {made_for.n_faults} mechanisms)",
                where=str(path),
                mend="decode shots of the circuit that the env describes",
            )
        return cls(here, model, (theirs.log_odds - mine.log_odds).astype(np.float32))

    def decode(self, detectors: np.ndarray) -> np.ndarray:
        """uint8 [n, ceil(n_detectors / 8)] -> bool [n, n_observables]."""
        answers = np.zeros((len(detectors), self._problem.n_observables), bool)
        for start in range(0, len(detectors), CHUNK):
            part = detectors[start : start + CHUNK]
            events = torch.from_numpy(unpack(part, self._problem.n_detectors)).float()
            with torch.no_grad():
                log_odds = self._model(events).numpy() + self._shift
            answers[start : start + CHUNK] = self._backend.decode_soft(part, log_odds)
        return answers

    def decode_shots_bit_packed(self, *, bit_packed_detection_event_data: np.ndarray) -> np.ndarray:
        return pack(self.decode(bit_packed_detection_event_data))
