"""Files of the decoder board: pinned circuits, decoders, and measurements of a decoder on a circuit."""

from __future__ import annotations

from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from autoqec.contracts.base import Contract
from autoqec.contracts.env import BicycleCode, StimGeneratorCode
from autoqec.contracts.names import NAME, SHA256

BoardNoise = Literal["circuit_depolarizing", "circuit_biased", "si1000"]
MeasurementStatus = Literal["ok", "error", "timeout", "wrong_shape", "inconsistent"]
STATUSES: tuple[MeasurementStatus, ...] = get_args(MeasurementStatus)


class BoardCircuit(Contract):
    """A line of a board's circuits.jsonl: how a circuit is generated, and the hash that pins it.

    A circuit without `code` is the file circuits/<sha256>.stim of the board.
    """

    schema_version: Literal[1] = Field(default=1, description="format of the line")
    name: str = Field(pattern=NAME, description="name of the circuit")
    sha256: str = Field(pattern=SHA256, description="SHA-256 of the circuit's text as stim writes it")
    rounds: int | None = Field(ge=1, description="rounds of syndrome measurement; null if unknown")
    code: StimGeneratorCode | BicycleCode | None = Field(
        default=None, discriminator="kind", description="how the circuit is generated; null for a file"
    )
    noise: BoardNoise | None = Field(default=None, description="noise model of a generated circuit")
    p: float | None = Field(default=None, gt=0, lt=1, description="physical error rate of a generated circuit")
    eta: float | None = Field(default=None, gt=0, description="bias, for noise `circuit_biased`")

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if (self.code is None) != (self.noise is None) or (self.code is None) != (self.p is None):
            raise ValueError("`code`, `noise` and `p` belong together")
        return self


class BoardDecoder(Contract):
    """A line of a board's decoders.jsonl: where a decoder comes from.

    `module.function()` returns a `sinter.Decoder`, or several by name.
    """

    schema_version: Literal[1] = Field(default=1, description="format of the line")
    name: str = Field(pattern=NAME, description="name of the decoder on the board")
    source: str = Field(description="MODULE:FUNCTION")
    key: str | None = Field(default=None, description="name in the function's result; null if it is one decoder")
    sandboxed: bool = Field(default=False, description="whether its process runs in the sandbox")


class BoardMeasurement(Contract):
    """A line of a board's results.jsonl: one decoder on consecutive blocks of shots of one circuit.

    The shots of a block are a function of the detector error model, the seed and the number of the block, so that
    every decoder gets the same shots. Provenance that is not known is null.
    """

    schema_version: Literal[1] = Field(default=1, description="format of the line")
    circuit: str = Field(pattern=NAME, description="name of the circuit")
    circuit_sha256: str = Field(pattern=SHA256, description="SHA-256 of the circuit's text")
    dem_sha256: str | None = Field(pattern=SHA256, description="SHA-256 of the detector error model that was sampled")
    rounds: int | None = Field(ge=1, description="rounds of syndrome measurement")
    decoder: str = Field(pattern=NAME, description="name of the decoder")
    decoder_source: str | None = Field(description="MODULE:FUNCTION of the decoder")
    decoder_version: str | None = Field(description="distribution, its version and the settings of the decoder")
    sandboxed: bool | None = Field(description="whether the decoder ran in the sandbox")
    status: MeasurementStatus = Field(description="ok, or how the decoder failed after the counted blocks")
    message: str | None = Field(description="the decoder's failure")
    seed: int | None = Field(ge=0, description="seed of the shots")
    first_block: int = Field(ge=0, description="number of the first block")
    block_shots: int = Field(ge=1, description="shots per block")
    failures: tuple[int, ...] = Field(description="shots with a logical error, by block")
    fixed: tuple[int, ...] | None = Field(
        description="shots that correlated matching decodes wrongly and the decoder correctly, by block; null if the "
        "circuit has no matching graph"
    )
    broken: tuple[int, ...] | None = Field(
        description="shots that correlated matching decodes correctly and the decoder wrongly, by block"
    )
    cpu_s: float | None = Field(ge=0, description="CPU time of the decoder on one core, in seconds")
    reference_cpu_s: float | None = Field(
        ge=0, description="CPU time of correlated matching on the same shots in the same process, in seconds"
    )
    machine: str | None = Field(description="processor model")
    packages: dict[str, str] | None = Field(description="versions of the packages that figures depend on")
    commit: str | None = Field(description="git commit of autoqec; null if unknown or with uncommitted changes")
    measured_at: str | None = Field(description="end of the measurement, UTC")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        lengths = {len(counts) for counts in (self.failures, self.fixed, self.broken) if counts is not None}
        if len(lengths) != 1 or (self.fixed is None) != (self.broken is None):
            raise ValueError("`failures`, `fixed` and `broken` differ in length")
        counts = [*self.failures, *(self.fixed or ()), *(self.broken or ())]
        if any(not 0 <= value <= self.block_shots for value in counts):
            raise ValueError(f"a count lies outside 0 to {self.block_shots}")
        return self

    @property
    def shots(self) -> int:
        """Number of decoded shots."""
        return len(self.failures) * self.block_shots


class BoardOrder(Contract):
    """jobs/<name>/order.json of a board, written before the jobs are submitted: cells, each measured by a SLURM job."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    name: str = Field(pattern=NAME, description="unique name of the job or job array")
    options: dict[str, str] = Field(description="of `--slurm`, defaults filled in")
    directory: str = Field(description="working directory, in which modules of added decoders are found")
    cells: tuple[tuple[str, str], ...] = Field(min_length=1, description="circuit and decoder of each job, by name")
    shots: int = Field(ge=1, description="shots of each cell")
    seed: int = Field(ge=0, description="seed of the shots")
    timeout_s: float = Field(gt=0, description="limit for one block of shots, in seconds")
    again: bool = Field(default=False, description="whether blocks that the board already has are measured")


class BoardJobResult(Contract):
    """jobs/<name>/result-<index>.json of a board, written when a job ends; the counts are in results.jsonl."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    error: str | None = Field(description="why the cell was not measured to its end; null if it was")
