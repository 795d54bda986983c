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
from autoqec.errors import AutoqecError, ContractError, InputError
from autoqec.qec.backends import make_soft
from autoqec.qec.graph import DecodingGraph, MatchingGraph, TannerGraph
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import unpack

CHUNK = 2048  # shots unpacked, run and decoded at once: bounds memory
RETRAIN = "use another round's checkpoint"


class Decoding:
    """Detection events in, predicted observables out. `problem`: what is decoded. `unknown`: its edges that the net
    does not know, which keep their own priors."""

    def __init__(self, problem: Problem, made_for: Problem, model: Predecoder, columns: np.ndarray, path: Path) -> None:
        self.problem, self._model, self._path = problem, model, path
        here, there = (one.variables(model.output_mode).log_odds for one in (problem, made_for))
        self._known = columns >= 0
        self._columns = columns[self._known]
        self.unknown = int((~self._known).sum())
        self._prior = here.astype(np.float32)
        self.shift = np.where(self._known, here - there[columns], 0).astype(np.float32)
        self._backend = make_soft(problem, model.output_mode)

    @classmethod
    def of(
        cls, env: EnvSpec, path: Path, dem: stim.DetectorErrorModel | None = None, *, other: bool = False
    ) -> Decoding:
        """The checkpoint on `dem`, or on the env's own model at its target p.

        On another model with the same edges, as another p gives, the net's log-odds move by the difference of the
        priors. `other`: a model of the same detectors and observables may have other edges, as hardware's has; those
        that both have are the net's, the rest keep the model's priors. ContractError names both sides of a mismatch.
        """
        made_for = Problem.from_env(env)
        with _speaking_for(path):
            model, dsl = checkpoint.load(path, made_for)
        here = made_for if dem is None else _under(made_for, dem)
        mine, theirs = (one.variables(dsl.output_mode) for one in (made_for, here))
        columns = matching_columns(theirs, mine)
        sizes = [(one.n_detectors, one.n_observables) for one in (made_for, here)]
        same = not (columns < 0).any() and mine.n_edges == theirs.n_edges
        if sizes[0] != sizes[1] or not (columns >= 0).any() or not (same or other):
            raise _another_model(env, path, made_for, here, int((columns < 0).sum()), fits=sizes[0] == sizes[1])
        return cls(here, made_for, model, columns, path)

    def decode(self, detectors: np.ndarray) -> np.ndarray:
        """uint8 [n, ceil(n_detectors / 8)] -> bool [n, n_observables].

        ContractError where the net fails on a shot; InputError where no error of the model explains one.
        """
        answers = np.zeros((len(detectors), self.problem.n_observables), bool)
        for start in range(0, len(detectors), CHUNK):
            part = detectors[start : start + CHUNK]
            events = torch.from_numpy(unpack(part, self.problem.n_detectors)).float()
            with torch.no_grad(), _speaking_for(self._path):
                said = self._model(events).numpy()
            if not np.isfinite(said).all():
                raise ContractError("the net's outputs are not finite", where=str(self._path), mend=RETRAIN)
            log_odds = np.tile(self._prior, (len(part), 1))
            log_odds[:, self._known] = said[:, self._columns] + self.shift[self._known]
            try:
                answers[start : start + CHUNK] = self._backend.decode_soft(part, log_odds)
            except ValueError as error:  # the log-odds are finite and of the right shape
                raise InputError(
                    f"no errors of the model explain one of them ({error})",
                    where="detection events",
                    mend="decode shots of the circuit that the model describes",
                ) from error
        return answers


@contextmanager
def _speaking_for(path: Path) -> Iterator[None]:
    """Whatever a net's code raises is the checkpoint's fault, not autoqec's."""
    try:
        yield
    except AutoqecError:
        raise
    except Exception as error:
        what = f"the net fails ({type(error).__name__}: {str(error)[:200]})"
        raise ContractError(what, where=str(path), mend=RETRAIN) from error


def _under(problem: Problem, dem: stim.DetectorErrorModel) -> Problem:
    """The problem under a model that a person brought: it is the model that must be mended, not the env."""
    try:
        return problem.with_model(dem)
    except InputError as error:
        mend = "write the model with `stim analyze_errors --decompose_errors`, every probability above 0 and below 1"
        raise InputError(error.what, where="detector error model", mend=mend) from error


def matching_columns(here: DecodingGraph, there: DecodingGraph) -> np.ndarray:
    """int [here.n_edges]: where each edge stands in `there`, by the detectors and observables it flips; -1: nowhere."""
    place = {key: column for column, key in enumerate(_keys(there))}
    return np.array([place.get(key, -1) for key in _keys(here)], int)


def _keys(graph: DecodingGraph) -> list[tuple[tuple[int, ...], bytes, int]]:
    """Detectors and observables of each edge, and which of its equals it is: a model may say one thing twice."""
    if isinstance(graph, MatchingGraph):
        detectors = [tuple(sorted(int(end) for end in ends)) for ends in graph.endpoints]
    else:
        assert isinstance(graph, TannerGraph)
        table = graph.check_matrix
        bounds = zip(table.indptr, table.indptr[1:], strict=False)
        detectors = [tuple(sorted(graph.own[table.indices[start:end]].tolist())) for start, end in bounds]
    count: Counter[tuple[tuple[int, ...], bytes]] = Counter()
    keys = []
    for key in zip(detectors, (flips.tobytes() for flips in graph.observables), strict=True):
        keys.append((*key, count[key]))
        count[key] += 1
    return keys


def _another_model(
    env: EnvSpec, path: Path, made_for: Problem, here: Problem, unknown: int, *, fits: bool
) -> ContractError:
    def words(one: Problem) -> str:
        return f"{one.n_detectors} detectors, {one.n_observables} observables, {one.n_faults} mechanisms"

    known = f"; {unknown} of its edges are unknown to the net" if fits else ""
    return ContractError(
        f"this detector error model ({words(here)}) is not that of env `{env.name}` ({words(made_for)}){known}",
        where=str(path),
        mend="`autoqec decode --allow-other-dem` lets a model of the same detectors stand"
        if fits
        else "decode shots of the circuit that the env describes",
    )


def read_model(path: Path, env: EnvSpec) -> stim.DetectorErrorModel:
    """A `.dem` file, or the model of a `.stim` circuit as the env's backend takes it. InputError on anything else."""
    from autoqec.qec.problem import error_model
    from autoqec.store.files import read_text

    text = read_text(path, what="detector error model", mend="name a .dem or a .stim file")
    try:
        model = stim.Circuit(text) if path.suffix == ".stim" else stim.DetectorErrorModel(text)
    except (ValueError, IndexError) as error:
        raise InputError(
            f"stim can't read it ({str(error).strip().splitlines()[0]})",
            where=str(path),
            mend="stim analyze_errors --in CIRCUIT --out MODEL.dem",
        ) from error
    return error_model(model, env)
