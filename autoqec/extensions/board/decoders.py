"""Decoders of a board: where they come from, and the process of one, with a time limit per block of shots."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import numpy as np

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import CORRELATED, BicycleCode, EnvSpec, StimGeneratorCode
from autoqec.contracts.names import RUN_ID
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.board.circuits import BLOCK_SHOTS, TRAINING_BLOCKS, Model, read_lines
from autoqec.extensions.board.contracts import STATUSES, BoardCircuit, BoardDecoder, MeasurementStatus
from autoqec.extensions.board.worker import TIMES
from autoqec.installation import __version__
from autoqec.models import load_models, model_env
from autoqec.qec.decoder_trust import FUNCTION
from autoqec.qec.external_decoders import DecoderChannel, NoAnswerError, ReportedFailureError, start
from autoqec.qec.sampling import unpack
from autoqec.reporting.text import plain
from autoqec.store import atomic, files, jsonl
from autoqec.store.history import History
from autoqec.store.layout import BoardLayout, RunLayout
from autoqec.system import sandbox
from autoqec.system.scratch import scratch

BUILTIN_SOURCE = "autoqec.extensions.board.builtin:decoders"
MODEL_SOURCE = "autoqec.sinter:decoders"
_ROUND = re.compile(rf"autoqec:(?P<run_id>{RUN_ID.removeprefix('^').removesuffix('$')}):[1-9][0-9]{{0,8}}")
GNN = "gnn_graphsage"
SECTOR = ("bposd_cs10_sector", "bplsd0_sector")
# name -> (distribution, settings)
BUILTIN: dict[str, tuple[str, str]] = {
    "mwpm": ("pymatching", ""),
    CORRELATED: ("pymatching", "two-pass correlations"),
    "mwpm_estimated": (
        "pymatching",
        f"probabilities estimated by autoqec {__version__} from {TRAINING_BLOCKS * BLOCK_SHOTS:,} other shots",
    ),
    "bposd0": ("ldpc", "minimum sum 0.75, 30 iterations, OSD-0"),
    "bposd_cs10": ("ldpc", "minimum sum 0.9, 100 iterations, OSD-CS order 10"),
    "bposd_cs10_qldpc": ("ldpc", "minimum sum 0.625, 30 iterations, OSD-CS order 10, as qldpc-challenge pins it"),
    "bplsd0": ("ldpc", "minimum sum 0.75, 30 iterations, LSD-0"),
    "bposd_cs10_sector": ("ldpc", "minimum sum 0.9, 100 iterations, OSD-CS order 10, detectors of one sector"),
    "bplsd0_sector": ("ldpc", "minimum sum 0.75, 30 iterations, LSD-0, detectors of one sector"),
    "union_find": ("ldpc", "weighted, inversion in clusters"),
    "fusion_blossom": ("fusion-blossom", "through sinter"),
    "tesseract_short": ("tesseract-decoder", "short beam"),
    "tesseract_long": ("tesseract-decoder", "long beam"),
    GNN: ("gnn-decoders", "GraphSAGE, seed 1, on the CPU"),
}
GNN_TASK, GNN_DISTANCES = "surface_code:rotated_memory_z", (3, 5, 7)  # that gnn-decoders has checkpoints for


def load_decoders(board: BoardLayout) -> dict[str, BoardDecoder]:
    """Return the decoders and verified models of the package and the decoders added to `board`, by name.

    Raises:
        ContractError: A line is damaged, has an unknown schema, or takes the name of another decoder.
    """
    found = {name: BoardDecoder(name=name, source=BUILTIN_SOURCE, key=name) for name in BUILTIN}
    for model in load_models():
        name = f"autoqec:{model}"
        found[name] = BoardDecoder(name=name, source=MODEL_SOURCE, key=name)
    for location, decoder in read_lines(board.decoders, BoardDecoder):
        if found.setdefault(decoder.name, decoder) != decoder:
            raise ContractError(
                f"two decoders are called {decoder.name!r}", location=location, hint=f"edit {board.decoders}"
            )
    return found


@dataclass(frozen=True)
class _Predecoder:
    """A verified model of the package, or a verified round of a run."""

    env: EnvSpec
    translation_invariant: bool
    checkpoint_sha256: str


def _predecoder(decoder: BoardDecoder) -> _Predecoder | None:
    """Return a model or round; None for other decoders, and for a round of a run that is not in this directory."""
    if decoder.source != MODEL_SOURCE or decoder.key is None:
        return None
    name = decoder.key.removeprefix("autoqec:")
    model = load_models().get(name)
    if model is not None:
        return _Predecoder(model_env(name), model.translation_invariant, model.checkpoint_sha256)
    run = _run_of(decoder)
    return None if run is None else _verified_round(run.repo_root, run.run_id, int(name.rpartition(":")[2]))


def _run_of(decoder: BoardDecoder) -> RunLayout | None:
    """Return the run of a decoder that is a round, in the current directory; None for other decoders."""
    found = _ROUND.fullmatch(decoder.key or "") if decoder.source == MODEL_SOURCE else None
    return None if found is None else RunLayout(Path.cwd(), found["run_id"])


@cache
def _verified_round(repo_root: Path, run_id: str, number: int) -> _Predecoder | None:
    layout = RunLayout(repo_root, run_id)
    rows = [row for row in History(layout).rows() if row.round == number and row.verify_verdict == "VERIFIED"]
    checkpoint = layout.round(number).checkpoint
    if not rows or not checkpoint.is_file():
        return None
    dsl = parse_dsl(rows[-1].dsl_config or {}, location=f"run {run_id}, round {number}")
    return _Predecoder(
        files.load_env(layout.env)[0], dsl.translation_invariant, sha256_bytes(files.read_bytes(checkpoint))
    )


def fits(decoder: BoardDecoder, circuit: BoardCircuit) -> bool:
    """Return whether a decoder applies to a circuit: a trained one to its own, at any physical error rate.

    Translation-invariant weights also decode the other distances and numbers of rounds of their code, whether the
    family that they were verified on has them or not. gnn-decoders recognizes its circuits by their number of
    detectors, which others share. Decoders of one sector apply to bicycle codes, whose detectors name theirs. Whether a
    circuit from a file has sectors, or is the one of a round or of translation-invariant weights, is known once it is
    decoded.
    """
    code = circuit.code
    if decoder.source == BUILTIN_SOURCE and decoder.name in SECTOR:
        return code is None or isinstance(code, BicycleCode)
    if decoder.source == BUILTIN_SOURCE and decoder.name == GNN:
        return (
            isinstance(code, StimGeneratorCode)
            and (code.task, code.rounds) == (GNN_TASK, code.distance)
            and code.distance in GNN_DISTANCES
            and circuit.noise == "circuit_depolarizing"
        )
    trained = _predecoder(decoder)
    if trained is None:
        return _run_of(decoder) is None
    if code is None:
        return _run_of(decoder) is not None or trained.translation_invariant
    if trained.env.noise.model != circuit.noise:
        return False
    if trained.translation_invariant and isinstance(trained.env.code, StimGeneratorCode):
        return isinstance(code, StimGeneratorCode) and trained.env.code.task == code.task
    return trained.env.code == code


def version(decoder: BoardDecoder) -> str | None:
    """Return distribution, version and settings; None if no installed distribution provides the decoder's module."""
    if decoder.source == BUILTIN_SOURCE:
        distribution, settings = BUILTIN[decoder.name]
    elif (trained := _predecoder(decoder)) is not None:
        distribution, settings = "autoqec", f"checkpoint {trained.checkpoint_sha256[:12]}"
    elif _run_of(decoder) is not None:
        return None
    else:
        provided = metadata.packages_distributions().get(decoder.source.partition(".")[0].partition(":")[0], [])
        if len(provided) != 1:
            return None
        distribution, settings = provided[0], ""
    try:
        installed = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
    return f"{distribution} {installed}" + (f" ({settings})" if settings else "")


def unavailable(decoder: BoardDecoder) -> tuple[str, str] | None:
    """Return why a decoder cannot be measured here, and a hint; None if it can be."""
    if decoder.source == BUILTIN_SOURCE and version(decoder) is None:
        return f"decoder {decoder.name!r} is not installed", f"pip install {BUILTIN[decoder.name][0]}"
    run = _run_of(decoder)
    if run is not None and _predecoder(decoder) is None:
        message = f"decoder {decoder.name!r}: run {run.run_id} is not in runs/, or the round has no VERIFIED checkpoint"
        return message, "repeat the command in the workspace of the run"
    return None


def find_module(source: str) -> ModuleSpec:
    """Find the top-level module of MODULE:FUNCTION in the current directory or on the import path; imports nothing.

    Raises:
        UsageError: The name is malformed, or there is no such module.
    """
    if not FUNCTION.fullmatch(source):
        raise UsageError(f"{source!r} is not of the form MODULE:FUNCTION", hint="for example my_decoders:decoders")
    top = source.partition(":")[0].partition(".")[0]
    found = PathFinder.find_spec(top, [os.getcwd(), *sys.path])
    if found is None or found.origin is None:
        raise UsageError(
            f"module {top!r} not found", location=source, hint=f"pip install it, or change to the directory of {top}.py"
        )
    return found


def add_decoders(board: BoardLayout, source: str, keys: list[str | None], *, sandboxed: bool) -> list[BoardDecoder]:
    """Add the decoders of MODULE:FUNCTION to the board; those that it has already stay as they are.

    Of `autoqec.sinter:decoders`, verified rounds are added: the board has its other decoders.

    Args:
        board: The board.
        source: MODULE:FUNCTION.
        keys: Names in the function's result; [None] if it returns one decoder, which is called as its function.
        sandboxed: Whether their processes run in the sandbox.

    Raises:
        UsageError: Names are taken by other decoders, or not valid; nothing is added then.
    """
    known = load_decoders(board)
    wanted = [_named(source, key, sandboxed=sandboxed) for key in keys]
    if source == MODEL_SOURCE:
        wanted = [decoder for decoder in wanted if _run_of(decoder) is not None]
        if not wanted:
            message = "no VERIFIED round in runs/; the board has the models of the package and mwpm_correlated already"
            hint = "run this in the workspace of a run; for the models, autoqec board measure CIRCUIT 'autoqec:*'"
            raise UsageError(message, location=source, hint=hint)
    taken = [known[decoder.name] for decoder in wanted if known.get(decoder.name, decoder) != decoder]
    if taken:
        raise _names_taken(taken, board, source)
    for decoder in wanted:
        if decoder.name not in known:
            atomic.make_dir(board.dir)
            jsonl.append(board.decoders, decoder.dump())
    return wanted


def _named(source: str, key: str | None, *, sandboxed: bool) -> BoardDecoder:
    name = source.rpartition(":")[2] if key is None else key
    try:
        return BoardDecoder(name=name, source=source, key=key, sandboxed=sandboxed)
    except ValueError as error:
        message = f"{name!r} is not a valid name of a decoder"
        raise UsageError(message, location=source, hint="use letters, digits and _.:+-") from error


def _names_taken(taken: list[BoardDecoder], board: BoardLayout, source: str) -> UsageError:
    texts = [
        f"{decoder.name!r} ({decoder.source}, {'in' if decoder.sandboxed else 'without'} the sandbox)"
        for decoder in taken
    ]
    hint = "return them under other names"
    if any(decoder.source not in (BUILTIN_SOURCE, MODEL_SOURCE) for decoder in taken):
        hint += f", or remove the lines of the others from {board.decoders}"
    return UsageError(f"the board has other decoders of these names: {', '.join(texts)}", location=source, hint=hint)


class DecoderFailedError(Exception):
    """A decoder gave no usable answer.

    Attributes:
        status: How it failed.
    """

    def __init__(self, status: MeasurementStatus, message: str) -> None:
        super().__init__(plain(message, 500))
        self.status = status


class DecoderCancelledError(Exception):
    """The decoder was ended by `cancel`."""


@dataclass(frozen=True, eq=False)
class BlockAnswer:
    """Predictions for a block, bool [n, n_observables], and CPU times in seconds; None without a matching graph."""

    predictions: np.ndarray
    cpu_s: float
    reference_cpu_s: float | None


class DecoderProcess:
    """A running decoder.

    Every method raises DecoderFailedError if it raises, ends, hangs or answers nonsense, and DecoderCancelledError
    after `cancel`.
    """

    def __init__(self, channel: DecoderChannel, timeout_s: float) -> None:
        self._channel, self._timeout_s = channel, timeout_s
        self._n_observables = 0
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """End the process now, also while another thread waits for its answer."""
        self._cancelled.set()
        self._channel.kill()

    def offered(self, decoder: BoardDecoder) -> list[str | None]:
        """Return the names in the result of the decoder's function; [None] if it returns one decoder."""
        answer = self._ask(_request(decoder, None, None))
        names = json.loads(answer)
        if names is None:
            return [None]
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise DecoderFailedError("error", "its process answered without names")  # it runs untrusted code
        return list(names)

    def compile(self, decoder: BoardDecoder, model: Model) -> None:
        """Compile the decoder for a model."""
        self._n_observables = model.L.shape[0]
        self._ask(_request(decoder, str(model.dem), model.matchable), 0)

    def decode(self, detection_events: np.ndarray) -> BlockAnswer:
        """Decode bit-packed detection events, uint8 [n, ceil(n_detectors / 8)]."""
        shape = (len(detection_events), -(-self._n_observables // 8))
        size = TIMES.size + shape[0] * shape[1]
        answer = self._ask(np.ascontiguousarray(detection_events).tobytes(), size)
        cpu_s, reference_cpu_s = TIMES.unpack(answer[: TIMES.size])
        packed = np.frombuffer(answer[TIMES.size :], np.uint8).reshape(shape)
        reference = None if math.isnan(reference_cpu_s) else reference_cpu_s
        if not (math.isfinite(cpu_s) and cpu_s >= 0 and (reference is None or 0 <= reference < math.inf)):
            raise DecoderFailedError("error", "the process reported an impossible CPU time")
        return BlockAnswer(unpack(packed, self._n_observables).astype(bool), cpu_s, reference)

    def _ask(self, payload: bytes, size: int | None = None) -> bytes:
        """Send one request; return its answer, of `size` bytes if given."""
        try:
            return self._channel.ask(payload, size)
        except NoAnswerError as error:
            if self._cancelled.is_set():
                raise DecoderCancelledError from error
            if error.expired:
                raise DecoderFailedError("timeout", f"no answer within {self._timeout_s:g} s") from error
            raise DecoderFailedError("error", str(error)) from error
        except ReportedFailureError as error:
            raise _reported(error.payload) from error


def _reported(answer: bytes) -> DecoderFailedError:
    """Read a failure from the process, which runs untrusted code."""
    try:
        value = json.loads(answer)
        status, message = value["status"], str(value["message"])
    except (ValueError, KeyError, TypeError):
        status, message = "error", "reported a failure without a message"
    return DecoderFailedError(status if status in STATUSES and status != "ok" else "error", message)


def _request(decoder: BoardDecoder, dem: str | None, matchable: bool | None) -> bytes:
    module = find_module(decoder.source)
    value: dict[str, Any] = {
        "source": decoder.source,
        "key": decoder.key,
        "origin": module.origin,
        "locations": module.submodule_search_locations,
        "dem": dem,
        "matchable": matchable,
    }
    return json.dumps(value).encode()


@contextmanager
def decoder_process(decoder: BoardDecoder, timeout_s: float) -> Iterator[DecoderProcess]:
    """Start the process of a decoder for the block; it ends with it.

    Its working directory is the current one, so that it finds files by relative paths; in the sandbox an empty one.

    Args:
        decoder: Whose process; nothing is loaded yet.
        timeout_s: Limit for each answer, in seconds.

    Raises:
        UsageError: The decoder's module is not found, or no sandbox is available although the decoder needs one.
    """
    module = find_module(decoder.source)
    if decoder.sandboxed and sandbox.probe() == "none":
        raise UsageError("no sandbox is available", location=f"decoder {decoder.name}", hint="autoqec doctor")
    with (
        scratch("board") as directory,
        start("autoqec.extensions.board.worker", module, directory, sandboxed=decoder.sandboxed) as process,
    ):
        yield DecoderProcess(DecoderChannel(process, directory, timeout_s), timeout_s)
