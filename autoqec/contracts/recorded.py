"""Recorded shots: `recorded.yaml` of a directory of shot files, and the manifest of the files that were read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from autoqec.contracts.base import Contract


class RecordedBlock(Contract):
    """Shots recorded one after another under one setting: detection events with observable flips, or measurements.

    Paths are relative to the directory. Formats are those of stim, chosen by the file extension, otherwise b8.
    """

    detection_events: str | None = Field(default=None, description="file of detection events")
    observables: str | None = Field(default=None, description="file of observable flips of the same shots")
    measurements: str | None = Field(default=None, description="file of raw measurements; the circuit converts them")
    sweep_bits: str | None = Field(default=None, description="file of sweep bits of the same shots")
    predictions: dict[str, str] = Field(
        default_factory=dict, description="predicted observable flips of other decoders: name -> file"
    )
    device: str | None = Field(default=None, description="name of the device")
    time: str | None = Field(default=None, description="start of the recording, ISO 8601")
    basis: str | None = Field(default=None, description="memory basis")
    patch: str | None = Field(default=None, description="place on the device, for example the centre of the patch")

    @model_validator(mode="after")
    def _complete(self) -> RecordedBlock:
        if (self.detection_events is None) != (self.observables is None):
            raise ValueError("`detection_events` and `observables` must be given together")
        if self.detection_events is None and self.measurements is None:
            raise ValueError("needs `detection_events` and `observables`, or `measurements`")
        return self

    def __hash__(self) -> int:  # an env is a key of caches, and `predictions` is a dict
        return hash((self.files, *self.predictions, self.device, self.time, self.basis, self.patch))

    @property
    def files(self) -> tuple[str, ...]:
        """Return the paths of all files of the block."""
        own = (self.detection_events, self.observables, self.measurements, self.sweep_bits)
        return (*(path for path in own if path is not None), *self.predictions.values())


class RecordedLayout(Contract):
    """Content of `recorded.yaml`: the circuit or detector error model, and blocks of shots in the order of time."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    model: str = Field(description="circuit (.stim) or detector error model (.dem) of the shots")
    rounds: int = Field(default=1, ge=1, description="rounds of the experiment, for rates per round")
    blocks: tuple[RecordedBlock, ...] = Field(min_length=1, description="blocks of shots in the order of time")

    @model_validator(mode="after")
    def _known_model(self) -> RecordedLayout:
        if not self.model.endswith((".stim", ".dem")):
            raise ValueError(f"`model` is {self.model!r}; expected a file ending in .stim or .dem")
        if self.model.endswith(".dem") and any(block.detection_events is None for block in self.blocks):
            raise ValueError("a block of `measurements` alone needs a circuit as `model`")
        return self

    @property
    def predicted_by(self) -> tuple[str, ...]:
        """Names of the other decoders whose predictions every block has."""
        first = self.blocks[0].predictions
        return tuple(name for name in first if all(name in block.predictions for block in self.blocks))


class RecordedFile(Contract):
    """One file that was read."""

    path: str = Field(description="relative to the directory")
    bytes: int = Field(ge=0, description="size")
    sha256: str = Field(description="SHA-256 of the content")


class RecordedManifest(Contract):
    """Content of NAME.recorded.json, which `autoqec add-env --recorded` writes beside the env file."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    directory: str = Field(description="directory of the shots, relative to the manifest")
    layout: RecordedLayout = Field(description="model and blocks, as found in the directory")
    shots: tuple[int, ...] = Field(description="shots of each block")
    files: tuple[RecordedFile, ...] = Field(description="every file of the layout")
    estimated: str | None = Field(
        default=None, description="detector error model estimated from the first shots, relative to the manifest"
    )
    estimated_sha256: str | None = Field(default=None, description="SHA-256 of its text")
    estimated_shots: int = Field(default=0, ge=0, description="first shots from which it was estimated")


class RecordedShotsCode(Contract):
    """Recorded shots of a circuit or detector error model, divided by time into training, validation and test.

    The frozen env carries the manifest with the hashes of all files and the texts of both models; shots are never
    copied into it. Blocks of `block_shots` successive shots are counted from the first shot; the test blocks come last.
    """

    kind: Literal["recorded_shots"] = Field(default="recorded_shots", description="selects this code source")
    path: str = Field(description="manifest that `autoqec add-env --recorded` wrote, relative to the env file")
    rounds: int = Field(default=1, ge=1, description="rounds of the experiment, for rates per round")
    block_shots: int = Field(ge=1, description="successive shots that are one unit of the test")
    train: float = Field(default=0.5, gt=0, lt=1, description="share of the blocks that rounds train on")
    validation: float = Field(default=0.1, gt=0, lt=1, description="share of the blocks that rounds are validated on")
    candidates: int = Field(
        default=4, ge=1, le=100, description="candidates among which the sealed test blocks are divided"
    )
    priors: Literal["estimated", "given"] = Field(
        default="estimated",
        description="model that gives the weights of the inner decoder and the shots of the first training phase",
    )
    manifest: RecordedManifest | None = Field(
        default=None, description="content of the manifest; filled in when the env is frozen"
    )
    text: str | None = Field(default=None, description="the given model; filled in when the env is frozen")
    estimated: str | None = Field(
        default=None, description="the estimated detector error model; filled in when the env is frozen"
    )

    @model_validator(mode="after")
    def _leaves_test_blocks(self) -> RecordedShotsCode:
        if self.train + self.validation >= 1:
            raise ValueError(f"train {self.train:g} + validation {self.validation:g} leave no blocks for the test")
        return self
