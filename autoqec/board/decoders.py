"""Decoders that a board knows: those of the package, verified models, and `sinter.Decoder`s that the user added."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder

from autoqec.board.circuits import check_schema
from autoqec.board.shots import BLOCK_SHOTS, TRAINING_BLOCKS
from autoqec.contracts.board import BoardCircuit, BoardDecoder
from autoqec.contracts.env import CORRELATED, StimGeneratorCode
from autoqec.errors import ContractError, UsageError
from autoqec.installation import __version__
from autoqec.models import load_models, model_env
from autoqec.qec.decoder_trust import FUNCTION
from autoqec.store import atomic, jsonl
from autoqec.store.package_layout import BoardLayout

BUILTIN_SOURCE = "autoqec.board.builtin:decoders"
MODEL_SOURCE = "autoqec.sinter:decoders"
GNN = "gnn_graphsage"
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
    for number, line in enumerate(jsonl.read(board.decoders), start=1):
        location = f"{board.decoders}:{number}"
        check_schema(line, location)
        decoder = BoardDecoder.read(line, location=location)
        if found.setdefault(decoder.name, decoder) != decoder:
            raise ContractError(
                f"two decoders are called {decoder.name!r}", location=location, hint=f"edit {board.decoders}"
            )
    return found


def fits(decoder: BoardDecoder, circuit: BoardCircuit) -> bool:
    """Return whether a decoder applies to a circuit: a trained one to its own, at any physical error rate.

    Translation-invariant weights also decode the other distances and numbers of rounds of their code, whether the
    family that they were verified on has them or not. gnn-decoders recognizes its circuits by their number of
    detectors, which others share.
    """
    if decoder.source == BUILTIN_SOURCE and decoder.name == GNN:
        code = circuit.code
        return (
            isinstance(code, StimGeneratorCode)
            and (code.task, code.rounds) == (GNN_TASK, code.distance)
            and code.distance in GNN_DISTANCES
            and circuit.noise == "circuit_depolarizing"
        )
    if decoder.source != MODEL_SOURCE:
        return True
    name = decoder.name.removeprefix("autoqec:")
    env, code = model_env(name), circuit.code
    if env.noise.model != circuit.noise:
        return False
    if load_models()[name].translation_invariant and isinstance(env.code, StimGeneratorCode):
        return isinstance(code, StimGeneratorCode) and env.code.task == code.task
    return env.code == code


def version(decoder: BoardDecoder) -> str | None:
    """Return distribution, version and settings; None if no installed distribution provides the decoder's module."""
    if decoder.source == BUILTIN_SOURCE:
        distribution, settings = BUILTIN[decoder.name]
    elif decoder.source == MODEL_SOURCE:
        model = load_models()[decoder.name.removeprefix("autoqec:")]
        return f"autoqec {__version__} (checkpoint {model.checkpoint_sha256[:12]})"
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


def missing_distribution(decoder: BoardDecoder) -> str | None:
    """Return the distribution that a packaged decoder needs if it is not installed."""
    if decoder.source != BUILTIN_SOURCE or version(decoder) is not None:
        return None
    return BUILTIN[decoder.name][0]


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
        raise UsageError(f"module {top!r} not found", location=source, hint=f"pip install it, or cd to {top}.py")
    return found


def add_decoders(board: BoardLayout, source: str, keys: list[str | None], *, sandboxed: bool) -> list[BoardDecoder]:
    """Add the decoders of MODULE:FUNCTION to the board; those that it has already stay as they are.

    Args:
        board: The board.
        source: MODULE:FUNCTION.
        keys: Names in the function's result; [None] if it returns one decoder, which is called as its function.
        sandboxed: Whether their processes run in the sandbox.

    Raises:
        UsageError: A name is taken by another decoder, or is not a valid name.
    """
    known = load_decoders(board)
    added = []
    for key in keys:
        name = key or source.rpartition(":")[2]
        try:
            decoder = BoardDecoder(name=name, source=source, key=key, sandboxed=sandboxed)
        except ValueError as error:
            message = f"{name!r} is not a valid name of a decoder"
            raise UsageError(message, location=source, hint="use letters, digits and _.:+-") from error
        if known.get(name, decoder) != decoder:
            hint = f"return it under another name, or edit {board.decoders}"
            raise UsageError(f"the board has another decoder {name!r}", location=source, hint=hint)
        if name not in known:
            atomic.make_dir(board.dir)
            jsonl.append(board.decoders, decoder.dump())
        added.append(decoder)
    return added
