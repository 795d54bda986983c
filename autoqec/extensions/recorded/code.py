"""The code kind `recorded_shots`, with the contracts of `recorded.yaml` and of the manifest of the files.

Every command that reads an env imports this module: what reads files or decodes is imported where it is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from autoqec.contracts.base import Contract
from autoqec.contracts.code_source import FileCode
from autoqec.errors import UsageError

if TYPE_CHECKING:
    import stim

    from autoqec.cli.new_env import EnvOptions
    from autoqec.contracts.env import EnvSpec
    from autoqec.contracts.events import OnEvent
    from autoqec.extensions.recorded.session import RecordedSession
    from autoqec.extensions.recorded.shot_source import RecordedRunShots, RecordedShotSource
    from autoqec.qec.codes import Source
    from autoqec.qec.problem import Problem
    from autoqec.store.layout import RunLayout

AGAIN = "write the env again with `autoqec add-env --recorded --force`"


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


class RecordedShotsCode(FileCode):
    """Recorded shots of a circuit or detector error model, divided by time into training, validation and test.

    The frozen env carries the manifest with the hashes of all files and the texts of both models; shots are never
    copied into it. Blocks of `block_shots` successive shots are counted from the first shot; the test blocks come last.
    """

    own_noise: ClassVar[bool] = True
    own_shots: ClassVar[bool] = True
    backends: ClassVar[tuple[str, ...]] = ("mwpm",)  # gains are measured against matching
    compared: ClassVar[tuple[str, ...]] = ("mwpm_estimated", "mwpm_correlated_estimated")
    example: ClassVar[tuple[str, str] | None] = ("recorded_example", "recorded shots of a simulated device")
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

    @classmethod
    def of(cls, env: EnvSpec) -> RecordedShotsCode:
        """Return the code of an env of recorded shots."""
        code: Any = env.code
        assert isinstance(code, cls)
        return code

    @property
    def files(self) -> RecordedManifest:
        """Return the manifest; UsageError if the env was not loaded from its file."""
        if self.manifest is None:
            raise UsageError("`code.manifest` is missing", location="env", hint="load the env from its env file")
        return self.manifest

    @property
    def predicted_by(self) -> tuple[str, ...] | None:
        """Names of the other decoders whose predictions every block has; None before the manifest is read."""
        return None if self.manifest is None else self.manifest.layout.predicted_by

    def with_content(self, content: str, directory: Path, hint: str) -> Self:
        """Return the code with its manifest and the texts of its models."""
        from autoqec.extensions.recorded.env import read_models

        manifest, given, estimated = read_models(self, content, directory)
        return self.model_copy(update={"manifest": manifest, "text": given, "estimated": estimated})

    def build(self, env: EnvSpec, p: float | None) -> Source:
        """Return the given model."""
        import stim

        is_dem = self.files.layout.model.endswith(".dem")
        return stim.DetectorErrorModel(self.text) if is_dem else stim.Circuit(self.text)

    def decoder_model(self, env: EnvSpec, source: Source) -> stim.DetectorErrorModel | None:
        """Return the estimated model if it gives the weights of the inner decoder."""
        return self.estimated_model(env, source) if self.priors == "estimated" else None

    def estimated_model(self, env: EnvSpec, source: Source) -> stim.DetectorErrorModel:
        """Return the model that was estimated from the training shots."""
        import stim  # the candidate's process calls this: no matching library is to be imported

        location = f"env `{env.name}`"
        try:
            model = stim.DetectorErrorModel(self.estimated or "")
        except ValueError as error:
            message = f"stim cannot read the estimated model ({str(error).strip().splitlines()[0]})"
            raise UsageError(message, location=location, hint=AGAIN) from error
        sizes = (model.num_detectors, model.num_observables)
        if sizes != (source.num_detectors, source.num_observables):
            message = (
                f"the estimated model has {sizes[0]} detectors and {sizes[1]} observables, the given one "
                f"{source.num_detectors} and {source.num_observables}"
            )
            raise UsageError(message, location=location, hint=AGAIN)
        return model

    def shot_source(self, problem: Problem, directory: Path | None, simulated: bool) -> RecordedShotSource:
        """Return the source of the copies in `directory`."""
        from autoqec.extensions.recorded.shot_source import RecordedShotSource

        return RecordedShotSource.open(problem, directory, simulated)

    def check_start(self, env: EnvSpec, env_dir: Path, on_event: OnEvent) -> RecordedRunShots:
        """Compare the files with their hashes, and the visible shots with their model."""
        from autoqec.extensions.recorded.shot_source import check_start

        return check_start(env, env_dir, on_event)

    def check_moved(self, env: EnvSpec, directory: Path, location: str, on_event: OnEvent) -> RecordedRunShots:
        """Compare the files in a directory with the hashes in the env of a run."""
        from autoqec.extensions.recorded.shot_source import check_moved

        return check_moved(env, directory, on_event)

    def check_resumed(self, env: EnvSpec, layout: RunLayout) -> None:
        """Check that a run has its copies and knows an existing directory of the files."""
        from autoqec.extensions.recorded.shot_source import check_resumed

        check_resumed(env, layout)

    def verification_session(self) -> type[RecordedSession]:
        """Return the session that tests on sealed blocks."""
        from autoqec.extensions.recorded.session import RecordedSession

        return RecordedSession

    @classmethod
    def write_example(cls, directory: Path) -> Path:
        """Generate the shots of a simulated device, and their env."""
        from autoqec.extensions.recorded.example import write_example

        return write_example(directory)

    @classmethod
    def env_options(cls) -> EnvOptions:
        """Return the options of `autoqec add-env --recorded`."""
        from autoqec.extensions.recorded.commands.recorded_shots import ENV_OPTIONS

        return ENV_OPTIONS
