"""`autoqec board`: decoders on pinned circuits, a table whose every cell can be measured again."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from autoqec.cli.common import Output, is_given, options
from autoqec.errors import RunInterruptedError, UsageError, similar_names
from autoqec.store.layout import BoardLayout
from autoqec.system.machine import cpu_count

if TYPE_CHECKING:
    from autoqec.extensions.board.contracts import BoardCircuit, BoardDecoder, BoardMeasurement
    from autoqec.extensions.board.measure import Plan
    from autoqec.extensions.board.results import Cell

Value = TypeVar("Value")
FORMATS = ("csv", "json", "sinter-csv", "html", "circuit-bench", "qldpc-challenge")


@click.group("board")
def command() -> None:
    """Show and measure which decoder suits which circuit.

    The table joins the measurements in the package with those in ./board, where new ones are written. Every command
    takes --dir, --json, --quiet and --verbose.
    """


board_option = click.option(
    "--dir", "directory", type=click.Path(path_type=Path), default=Path("board"), show_default=True,
    help="Directory of your circuits, decoders and results.",
)  # fmt: skip


circuit_option = click.option(
    "--circuit", "pattern", metavar="CIRCUIT", default="*", help="Only these circuits: a name or pattern."
)


@command.command("show")
@circuit_option
@click.option("--missing", is_flag=True, help="List the cells that are not measured instead.")
@board_option
@options
def show(pattern: str, missing: bool, directory: Path, out: Output) -> None:
    """Show the measured cells, and how many are missing."""
    from autoqec.extensions.board.circuits import load_circuits
    from autoqec.extensions.board.decoders import fits, load_decoders
    from autoqec.extensions.board.export import to_row
    from autoqec.extensions.board.results import missing_cells, table_lines

    board = BoardLayout(directory)
    circuits = _matching(load_circuits(board), pattern, "circuit")
    table = _table(board, circuits)
    decoders = load_decoders(board)
    applicable = {
        name: [decoder for decoder, spec in decoders.items() if fits(spec, circuit)]
        for name, circuit in circuits.items()
    }
    if missing:
        for name, left in missing_cells(circuits, table, applicable).items():
            out.say(f"{name}: {', '.join(left)}")
            for decoder in left:
                out.emit({"circuit": name, "decoder": decoder, "state": "missing"})
        return
    for line in table_lines(circuits, table, applicable):
        out.say(line)
    for cell in table:
        out.emit(to_row(cell))


@command.command("measure", short_help="Measure decoders on circuits.")
@click.argument("circuit")
@click.argument("decoder")
@click.option(
    "--shots", type=click.IntRange(1), default=10_000, show_default=True,
    help="Rounded up to thousands, below 1,000 to multiples of 125.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the shots.")
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=600.0, show_default=True,
    help="Limit in seconds for loading a decoder, and for a block of shots.",
)  # fmt: skip
@click.option("--parallel", type=click.IntRange(1), default=1, show_default=True, help="Cells measured at a time.")
@click.option("--again", is_flag=True, help="Also measure what the board directory already has.")
@click.option(
    "--executor", type=click.Choice(["local", "slurm"]), default="local", show_default=True,
    help="Where cells are measured; slurm submits one job per cell.",
)  # fmt: skip
@click.option(
    "--slurm", "job_texts", metavar="KEY=VALUE", multiple=True,
    help="Option of the SLURM jobs: time, cpus, mem, partition, … Repeatable.",
)  # fmt: skip
@board_option
@options
def measure(
    circuit: str,
    decoder: str,
    shots: int,
    seed: int,
    timeout: float,
    parallel: int,
    again: bool,
    executor: str,
    job_texts: tuple[str, ...],
    directory: Path,
    out: Output,
) -> None:
    """Measure DECODER on CIRCUIT: names or patterns such as 'surface_d3_*'.

    The same seed gives the same shots on every machine, so that the counts of a decoder that decides the same way can
    be compared exactly. An interrupted measurement continues when the command is repeated.
    """
    from autoqec.extensions.board.circuits import load_circuits
    from autoqec.extensions.board.decoders import load_decoders
    from autoqec.extensions.board.measure import Plan, measure_cells
    from autoqec.extensions.board.results import measurement_line

    plan = Plan(shots, seed, timeout, again)
    job_options = _job_options(executor, job_texts, plan)
    if parallel > cpu_count():
        message = f"{parallel} cells at a time on {cpu_count()} cores"
        raise UsageError(message, location="--parallel", hint="use a smaller number")
    board = BoardLayout(directory)
    circuits = _matching(load_circuits(board), circuit, "circuit")
    decoders = _available(_matching(load_decoders(board), decoder, "decoder"), out)
    pairs = _pairs(circuits, decoders)

    n_new = 0

    def report(measurement: BoardMeasurement) -> None:
        nonlocal n_new
        n_new += 1
        out.note(measurement_line(measurement))

    try:
        if job_options is None:
            measure_cells(board, pairs, plan, parallel=parallel, on_measured=report)
        else:
            from autoqec.extensions.board.cluster import measure_in_jobs

            measure_in_jobs(board, pairs, plan, job_options, on_measured=report)
    except KeyboardInterrupt as error:
        message = "interrupted; the blocks that were measured are kept"
        raise RunInterruptedError(
            message, location=str(board.results), hint="repeat the command to continue"
        ) from error
    if not n_new:
        out.note(f"Nothing to measure: {board.results} has these shots. --again measures them once more.")
    _show_measured(board, circuits, set(decoders), out)


def _job_options(executor: str, texts: tuple[str, ...], plan: Plan) -> dict[str, str] | None:
    """Return the options of SLURM jobs after asking SLURM whether it accepts them; None without `--executor slurm`."""
    if executor != "slurm":
        if texts:
            raise UsageError("needs --executor slurm", location="--slurm", hint="add --executor slurm")
        return None
    if is_given("parallel"):
        hint = "remove it: every cell is a job, and the cluster decides how many run at a time"
        raise UsageError("does not apply to --executor slurm", location="--parallel", hint=hint)
    from autoqec.extensions.board.cluster import job_options
    from autoqec.extensions.slurm import submission as slurm

    completed = job_options(slurm.parse_options(texts), plan)
    slurm.check(completed)
    return completed


def _available(decoders: dict[str, BoardDecoder], out: Output) -> dict[str, BoardDecoder]:
    """Return the decoders that can be measured here; UsageError if the only one cannot."""
    from autoqec.extensions.board.decoders import unavailable

    reasons = {name: reason for name, spec in decoders.items() if (reason := unavailable(spec)) is not None}
    for message, hint in reasons.values():
        if len(decoders) == 1:
            raise UsageError(message, hint=hint)
        out.note(f"{message}: left out")
    return {name: spec for name, spec in decoders.items() if name not in reasons}


def _pairs(
    circuits: Mapping[str, BoardCircuit], decoders: Mapping[str, BoardDecoder]
) -> list[tuple[BoardCircuit, BoardDecoder]]:
    from autoqec.extensions.board.decoders import fits

    pairs = [
        (circuit, decoder) for circuit in circuits.values() for decoder in decoders.values() if fits(decoder, circuit)
    ]
    if not pairs:
        raise UsageError(
            f"{_some(decoders)} does not apply to {_some(circuits)}",
            hint="a trained decoder applies to its own circuit, one of type `local` to other sizes too: autoqec models",
        )
    return pairs


@command.command("add")
@click.argument("circuit", type=click.Path(path_type=Path), metavar="CIRCUIT.stim")
@click.option("--name", help="Name on the board; default: that of the file.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds of syndrome measurement; default: unknown.")
@board_option
@options
def add(circuit: Path, name: str | None, rounds: int | None, directory: Path, out: Output) -> None:
    """Add a circuit and pin it by its hash."""
    from autoqec.extensions.board.circuits import add_circuit

    spec = add_circuit(circuit, BoardLayout(directory), name=name, rounds=rounds)
    out.say(f"{spec.name}: {spec.sha256}")
    out.emit(spec.dump())


@command.command("add-decoder", short_help="Add your decoders, or your VERIFIED rounds.")
@click.argument("source", metavar="MODULE:FUNCTION")
@click.option("--sandbox", "sandboxed", is_flag=True, help="Run it in the sandbox.")
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True,
    help="Limit in seconds for loading it.",
)  # fmt: skip
@board_option
@options
def add_decoder(source: str, sandboxed: bool, timeout: float, directory: Path, out: Output) -> None:
    """Add the `sinter.Decoder` that MODULE.FUNCTION() returns, or each of a dict by name.

    The module may lie in the current directory. Its code runs in a process of its own, with your permissions unless
    --sandbox is given. autoqec.sinter:decoders adds the VERIFIED rounds of the runs in the current directory.
    """
    from autoqec.extensions.board.contracts import BoardDecoder
    from autoqec.extensions.board.decoders import MODEL_SOURCE, DecoderFailedError, add_decoders, decoder_process

    if sandboxed and source == MODEL_SOURCE:
        raise UsageError("the sandbox hides the runs", location="--sandbox", hint="leave out --sandbox")
    probe = BoardDecoder(name="probe", source=source, sandboxed=sandboxed)
    try:
        with decoder_process(probe, timeout) as process:
            keys = process.offered(probe)
    except DecoderFailedError as error:
        hint = "the function is called without arguments and returns a sinter.Decoder, or a dict of them by name"
        raise UsageError(str(error), location=source, hint=hint) from error
    for decoder in add_decoders(BoardLayout(directory), source, keys, sandboxed=sandboxed):
        out.say(decoder.name)
        out.emit(decoder.dump())


@command.command("export")
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="html: one self-contained page.")
@circuit_option
@click.option("--out", "target", type=click.Path(path_type=Path), help="File; default: standard output.")
@board_option
@options
def export(form: str, pattern: str, target: Path | None, directory: Path, out: Output) -> None:
    """Export the table. Times are CPU time on one core.

    circuit-bench: a batch of results 0.6 without the ids and scores of the site. qldpc-challenge: `circuit.ler` of the
    codes whose memory circuits CODE_x and CODE_z are measured with bposd_cs10_qldpc.
    """
    from autoqec.extensions.board.circuits import load_circuits
    from autoqec.store import atomic

    board = BoardLayout(directory)
    circuits = _matching(load_circuits(board), pattern, "circuit")
    table = _table(board, circuits)
    text = _exported(form, board, circuits, table)
    if target is None:
        click.echo(text, nl=False)
        return
    if not target.parent.is_dir():
        raise UsageError("its directory does not exist", location=str(target), hint=f"mkdir -p {target.parent}")
    atomic.write_text(target, text)
    out.say(str(target))
    out.emit({"out": str(target), "format": form, "cells": len(table)})


def _exported(form: str, board: BoardLayout, circuits: Mapping[str, BoardCircuit], table: list[Cell]) -> str:
    from autoqec.extensions.board.export import TEXT_FORMATS, page, to_circuit_bench, to_qldpc_challenge

    if form == "html":
        return page(circuits, table)
    if form == "circuit-bench":
        return to_circuit_bench(table)
    if form == "qldpc-challenge":
        return to_qldpc_challenge(circuits, table, board)
    return TEXT_FORMATS[form](table)


def _matching(known: Mapping[str, Value], pattern: str, what: str) -> dict[str, Value]:
    found = {name: value for name, value in known.items() if fnmatchcase(name, pattern)}
    if not found:
        hint = f"perhaps {similar_names(pattern, known)}; autoqec board show --missing lists more"
        raise UsageError(f"no {what} matches {pattern!r}", hint=hint)
    return found


def _some(names: Mapping[str, object]) -> str:
    shown = list(names)[:3] or ["no decoder"]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


def _table(board: BoardLayout, circuits: Mapping[str, BoardCircuit]) -> list[Cell]:
    from autoqec.extensions.board.results import board_measurements, table_of_cells

    return table_of_cells(circuits, board_measurements(board))


def _show_measured(board: BoardLayout, circuits: Mapping[str, BoardCircuit], decoders: set[str], out: Output) -> None:
    """Print the cells that were asked for, and whether they agree with other measurements of the same shots."""
    from autoqec.extensions.board.export import to_row
    from autoqec.extensions.board.results import cell_line

    for cell in _table(board, circuits):
        if cell.decoder in decoders:
            out.say(cell_line(cell))
            out.emit(to_row(cell))
