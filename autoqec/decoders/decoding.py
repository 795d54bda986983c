"""A checkpoint put to use: predecoder and backend on one detector error model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import stim
import torch

from autoqec.contracts.env import EnvSpec
from autoqec.decoders import checkpoint
from autoqec.decoders.base import Predecoder
from autoqec.errors import AutoqecError, ContractError, UsageError
from autoqec.qec.backends import make_soft_backend
from autoqec.qec.graph import DecodingGraph, MatchingGraph, TannerGraph
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import unpack

CHUNK = 2048  # shots unpacked, run and decoded at once: bounds memory
OTHER_CHECKPOINT_HINT = "use another round's checkpoint"


class CheckpointDecoder:
    """Detection events in, predicted observables out. `problem`: what is decoded. `unknown`: its edges that the net
    does not know, which keep their own priors."""

    def __init__(
        self, problem: Problem, training_problem: Problem, model: Predecoder, columns: np.ndarray, path: Path
    ) -> None:
        self.problem, self._model, self._path = problem, model, path
        here, there = (one.variables(model.output_mode).log_odds for one in (problem, training_problem))
        self._known_edges = columns >= 0
        self._columns = columns[self._known_edges]
        self.n_unknown_edges = int((~self._known_edges).sum())
        self._prior = here.astype(np.float32)
        self.shift = np.where(self._known_edges, here - there[columns], 0).astype(np.float32)
        self._backend = make_soft_backend(problem, model.output_mode)

    @classmethod
    def of(
        cls, env: EnvSpec, path: Path, dem: stim.DetectorErrorModel | None = None, *, allow_other_dem: bool = False
    ) -> CheckpointDecoder:
        """The checkpoint on `dem`, or on the env's own model at its target p.

        On another model with the same edges, as another p gives, the net's log-odds move by the difference of the
        priors. `other`: a model of the same detectors and observables may have other edges, as hardware's has; those
        that both have are the net's, the rest keep the model's priors. ContractError names both sides of a mismatch.
        """
        training_problem = Problem.from_env(env)
        with _checkpoint_errors(path):
            model, dsl = checkpoint.load(path, training_problem)
        here = training_problem if dem is None else _with_dem(training_problem, dem)
        mine, theirs = (one.variables(dsl.output_mode) for one in (training_problem, here))
        columns = match_edges(theirs, mine)
        sizes = [(one.n_detectors, one.n_observables) for one in (training_problem, here)]
        same = not (columns < 0).any() and mine.n_edges == theirs.n_edges
        if sizes[0] != sizes[1] or not (columns >= 0).any() or not (same or allow_other_dem):
            raise _model_mismatch_error(
                env, path, training_problem, here, int((columns < 0).sum()), fits=sizes[0] == sizes[1]
            )
        return cls(here, training_problem, model, columns, path)

    def decode(self, detectors: np.ndarray) -> np.ndarray:
        """uint8 [n, ceil(n_detectors / 8)] -> bool [n, n_observables].

        ContractError where the net fails on a shot; UsageError where no error of the model explains one.
        """
        predictions = np.zeros((len(detectors), self.problem.n_observables), bool)
        for start in range(0, len(detectors), CHUNK):
            part = detectors[start : start + CHUNK]
            events = torch.from_numpy(unpack(part, self.problem.n_detectors)).float()
            with torch.no_grad(), _checkpoint_errors(self._path):
                output = self._model(events).numpy()
            if not np.isfinite(output).all():
                raise ContractError(
                    "the net's outputs are not finite", location=str(self._path), hint=OTHER_CHECKPOINT_HINT
                )
            log_odds = np.tile(self._prior, (len(part), 1))
            log_odds[:, self._known_edges] = output[:, self._columns] + self.shift[self._known_edges]
            try:
                predictions[start : start + CHUNK] = self._backend.decode_soft(part, log_odds)
            except ValueError as error:  # the log-odds are finite and of the right shape
                raise UsageError(
                    f"no errors of the model explain one of them ({error})",
                    location="detection events",
                    hint="decode shots of the circuit that the model describes",
                ) from error
        return predictions


@contextmanager
def _checkpoint_errors(path: Path) -> Iterator[None]:
    """Whatever a net's code raises is the checkpoint's fault, not autoqec's."""
    try:
        yield
    except AutoqecError:
        raise
    except Exception as error:
        what = f"the net fails ({type(error).__name__}: {str(error)[:200]})"
        raise ContractError(what, location=str(path), hint=OTHER_CHECKPOINT_HINT) from error


def _with_dem(problem: Problem, dem: stim.DetectorErrorModel) -> Problem:
    """The problem under a model that a person brought: it is the model that must be mended, not the env."""
    try:
        return problem.with_dem(dem)
    except UsageError as error:
        hint = "write the model with `stim analyze_errors --decompose_errors`, every probability above 0 and below 1"
        raise UsageError(error.message, location="detector error model", hint=hint) from error


def match_edges(here: DecodingGraph, there: DecodingGraph) -> np.ndarray:
    """int [here.n_edges]: where each edge stands in `there`, by the detectors and observables it flips; -1: nowhere."""
    place = {key: column for column, key in enumerate(_edge_keys(there))}
    return np.array([place.get(key, -1) for key in _edge_keys(here)], int)


def _edge_keys(graph: DecodingGraph) -> list[tuple[tuple[int, ...], bytes, int]]:
    """Detectors and observables of each edge, and which of its equals it is: a model may say one thing twice."""
    if isinstance(graph, MatchingGraph):
        detectors = [tuple(sorted(int(end) for end in ends)) for ends in graph.endpoints]
    else:
        assert isinstance(graph, TannerGraph)
        table = graph.check_matrix
        bounds = zip(table.indptr, table.indptr[1:], strict=False)
        detectors = [tuple(sorted(graph.in_sector[table.indices[start:end]].tolist())) for start, end in bounds]
    count: Counter[tuple[tuple[int, ...], bytes]] = Counter()
    keys = []
    for key in zip(detectors, (flips.tobytes() for flips in graph.observables), strict=True):
        keys.append((*key, count[key]))
        count[key] += 1
    return keys


def _model_mismatch_error(
    env: EnvSpec, path: Path, training_problem: Problem, here: Problem, n_unknown_edges: int, *, fits: bool
) -> ContractError:
    def describe(one: Problem) -> str:
        return f"{one.n_detectors} detectors, {one.n_observables} observables, {one.n_mechanisms} mechanisms"

    known = f"; {n_unknown_edges} of its edges are unknown to the net" if fits else ""
    return ContractError(
        f"this detector error model ({describe(here)}) is not that of env `{env.name}` "
        f"({describe(training_problem)}){known}",
        location=str(path),
        hint="`autoqec decode --allow-other-dem` lets a model of the same detectors stand"
        if fits
        else "decode shots of the circuit that the env describes",
    )


def read_model(path: Path, env: EnvSpec) -> stim.DetectorErrorModel:
    """A `.dem` file, or the model of a `.stim` circuit as the env's backend takes it. UsageError on anything else."""
    from autoqec.qec.problem import error_model
    from autoqec.store.files import read_text

    text = read_text(path, what="detector error model", hint="name a .dem or a .stim file")
    try:
        model = stim.Circuit(text) if path.suffix == ".stim" else stim.DetectorErrorModel(text)
    except (ValueError, IndexError) as error:
        raise UsageError(
            f"stim can't read it ({str(error).strip().splitlines()[0]})",
            location=str(path),
            hint="stim analyze_errors --in CIRCUIT --out MODEL.dem",
        ) from error
    return error_model(model, env)
