"""EnvSpec: the content of an env file, with code, noise, inner decoder, baselines and limits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, Union

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from autoqec.contracts.base import Contract, optional
from autoqec.contracts.code_source import CodeSource, FileCode, extension_codes
from autoqec.contracts.noise import (
    BiasedNoise,
    ChannelNoise,
    CircuitDepolarizing,
    CodeCapacityNoise,
    FileNoise,
    Noise,
    Nvidia25Noise,
    PhenomenologicalNoise,
    Si1000Noise,
)

MAX_MEMBERS = 16


class CodeMember(Contract):
    """Size of one circuit of a family."""

    distance: int = Field(ge=2, le=63, description="code distance")
    rounds: int = Field(ge=1, le=10_000, description="rounds of syndrome measurement")

    def __str__(self) -> str:
        return f"d={self.distance} r={self.rounds}"


def pair_lists(data: dict[str, Any]) -> dict[str, Any]:
    """Replace lists in `distance` and `rounds` by `members` and the values of `target`.

    Args:
        data: Fields of a code as an env file holds them; returned unchanged without a list.

    Raises:
        ValueError: The lists have different lengths, or `target` is missing or not needed.
    """
    if isinstance(data.get("task"), list):
        raise ValueError("`task` is one name: the circuits of a family have the same gates")
    lists = {key: data[key] for key in ("distance", "rounds") if isinstance(data.get(key), list | tuple)}
    if not lists:
        if "target" in data:
            raise ValueError("`target` belongs to a family: write `distance` or `rounds` as a list")
        return data
    length = max(map(len, lists.values()))
    if any(len(values) != length for values in lists.values()):
        raise ValueError("`distance` and `rounds` are read in pairs: give lists of one length, or one number")
    if length < 2:
        raise ValueError("a family has two circuits or more, each of them once")
    if "members" in data or not isinstance(data.get("target"), dict):
        raise ValueError("a family needs `target: {distance: D, rounds: R}`, one of its circuits")
    pairs = zip(*(lists.get(key, [data.get(key)] * length) for key in ("distance", "rounds")), strict=True)
    members = [{"distance": distance, "rounds": rounds} for distance, rounds in pairs]
    rest = {key: value for key, value in data.items() if key != "target"}
    return {**rest, **CodeMember.model_validate(data["target"]).dump(), "members": members}


def check_target(target: CodeMember, members: tuple[CodeMember, ...]) -> None:
    """Raise ValueError unless a family has two different circuits or more and its target is one of them."""
    if len(members) < 2 or len(set(members)) != len(members):
        raise ValueError("a family has two circuits or more, each of them once")
    if target not in members:
        raise ValueError(f"the target {target} is not among the circuits {', '.join(map(str, members))}")


__all__ = ["BiasedNoise", "CircuitDepolarizing", "EnvSpec", "FileNoise", "Si1000Noise"]  # some are of `noise`

SEED_SPACE = 2**32  # bands are below; the verifier's own seeds are at or above

CORRELATED = "mwpm_correlated"  # the reference: matching that uses correlations between the sectors
GRAPH_BACKENDS = ("mwpm", CORRELATED)
SINTER_DECODER = re.compile(r"sinter:(?P<module>[\w.]+):(?P<function>\w+):(?P<decoder>[\w.:-]+)", re.ASCII)
ESTIMATED = {"mwpm_estimated": "mwpm", "mwpm_correlated_estimated": CORRELATED}  # name -> its decoder
PREDICTED = "recorded:"  # before the name of another decoder whose predictions were recorded with the shots
PREDICTED_DECODER = re.compile(rf"{PREDICTED}(?P<decoder>[\w.+:-]{{1,64}})", re.ASCII)
BASELINES = (*GRAPH_BACKENDS, *ESTIMATED, "bposd0", "bposd_cs10", "bposd_joint", "bplsd", "tesseract", "relay_bp")


class StimGeneratorCode(CodeSource):
    """A circuit from `stim.Circuit.generated` (https://github.com/quantumlib/Stim), or a family of them.

    In an env file `distance` and `rounds` may be lists, read in pairs, with `target` as one of the pairs. They are
    stored as `members`, with the target's values in `distance` and `rounds`.
    """

    kind: Literal["stim_generator"] = Field(default="stim_generator", description="selects this code source")
    task: Literal[
        "surface_code:rotated_memory_z",
        "surface_code:rotated_memory_x",
        "surface_code:unrotated_memory_z",
        "surface_code:unrotated_memory_x",
        "repetition_code:memory",
        "color_code:memory_xyz",
    ] = Field(description="stim's `code_task`")
    distance: int = Field(ge=2, le=63, description="code distance; of a family, that of its target")
    rounds: int = Field(ge=1, le=10_000, description="rounds of syndrome measurement; of a family, those of its target")
    members: tuple[CodeMember, ...] = Field(
        default=(), max_length=MAX_MEMBERS, description="circuits of a family, the target among them; left out for one"
    )

    @model_validator(mode="before")
    @classmethod
    def _pair_lists(cls, data: Any) -> Any:
        return pair_lists(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _target_is_a_member(self) -> StimGeneratorCode:
        if self.members:
            check_target(CodeMember(distance=self.distance, rounds=self.rounds), self.members)
        return self

    @model_serializer(mode="wrap")
    def _without_empty_members(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `members` out for a single circuit, so that its env has the text and hash of earlier versions."""
        fields: dict[str, Any] = handler(self)
        return fields if self.members else {key: value for key, value in fields.items() if key != "members"}


class StimFileCode(FileCode):
    """A circuit with detectors, observables and its own noise, in stim's text format.

    The frozen env carries the content of the file in `text`, so that the path is not needed again.
    """

    own_noise: ClassVar[bool] = True
    kind: Literal["stim_file"] = Field(default="stim_file", description="selects this code source")
    path: str = Field(description="circuit file, relative to the env file")
    text: str | None = optional("content of the file; filled in when the env is frozen")
    rounds: int = Field(default=1, ge=1, description="rounds of the experiment, for rates per round")


class DemFileCode(FileCode):
    """A detector error model with its own probabilities: shots are drawn from the model itself.

    For backend `mwpm` its mechanisms must be split into graph-like parts (`^`) already.
    """

    own_noise: ClassVar[bool] = True
    kind: Literal["dem_file"] = Field(default="dem_file", description="selects this code source")
    path: str = Field(description="detector error model file, relative to the env file")
    text: str | None = optional("content of the file; filled in when the env is frozen")
    rounds: int = Field(default=1, ge=1, description="rounds of the experiment, for rates per round")


class CssFileCode(FileCode):
    """Check matrices and logicals of a CSS code: one noisy step on the data, perfect checks (code capacity).

    The file is YAML with hx, hz, lx, lz, each a list of rows such as "1100"; absent lx and lz are computed. With basis
    z, X errors count and the Z logicals are the observables.
    """

    kind: Literal["css_file"] = Field(default="css_file", description="selects this code source")
    path: str = Field(description="YAML file with the matrices, relative to the env file")
    text: str | None = optional("content of the file; filled in when the env is frozen")
    basis: Literal["z", "x"] = Field(
        default="z", description="z: X errors are decoded, the Z logicals are the observables; x: the reverse"
    )
    rounds: Literal[1] = Field(default=1, description="always 1: code capacity has one noisy step")


class BicycleCode(CodeSource):
    """A bivariate bicycle code in a circuit-level memory experiment (Bravyi et al., Nature 627, 778, 2024).

    a, b: exponents (i, j) of the terms x^i y^j; Hx = [A | B], Hz = [B^T | A^T], 2*width*height data qubits.
    """

    kind: Literal["bivariate_bicycle"] = Field(default="bivariate_bicycle", description="selects this code source")
    width: int = Field(default=6, ge=2, le=64, description="size of the cyclic shift x")
    height: int = Field(default=6, ge=2, le=64, description="size of the cyclic shift y")
    a: tuple[tuple[int, int], tuple[int, int], tuple[int, int]] = Field(
        default=((3, 0), (0, 1), (0, 2)), description="exponents (i, j) of the three terms of A"
    )
    b: tuple[tuple[int, int], tuple[int, int], tuple[int, int]] = Field(
        default=((0, 3), (1, 0), (2, 0)), description="exponents (i, j) of the three terms of B"
    )
    rounds: int = Field(default=6, ge=1, le=10_000, description="rounds of syndrome measurement")
    basis: Literal["z", "x"] = Field(
        default="z", description="memory basis: the logical operators that are observables"
    )


BuiltinCode: TypeAlias = StimGeneratorCode | StimFileCode | DemFileCode | CssFileCode | BicycleCode
if TYPE_CHECKING:
    Code: TypeAlias = BuiltinCode
else:
    Code = Annotated[Union[(BuiltinCode, *extension_codes())], Field(discriminator="kind")]
GENERATOR_NOISE = (ChannelNoise, PhenomenologicalNoise, CodeCapacityNoise, Nvidia25Noise)


Band = tuple[int, int]


class SeedPolicy(Contract):
    """Disjoint bands of sampler seeds, both ends included, below 2**32."""

    train: Band = Field(description="seeds of training shots")
    val: Band = Field(description="seeds of validation shots")
    holdout: Band = Field(
        description="salts the verifier's seeds, which are derived from the run's secret above all bands"
    )

    @model_validator(mode="after")
    def _disjoint(self) -> SeedPolicy:
        bands = {name: getattr(self, name) for name in ("train", "val", "holdout")}
        for name, (low, high) in bands.items():
            if not 0 <= low <= high < SEED_SPACE:
                raise ValueError(f"band {name} = [{low}, {high}] must satisfy 0 <= low <= high < 2**32")
        ordered = sorted(bands.items(), key=lambda item: item[1])
        for (one, (_, high)), (two, (low, _)) in zip(ordered, ordered[1:], strict=False):
            if low <= high:
                raise ValueError(f"bands {one} and {two} overlap at seed {low}")
        return self


class Constraints(Contract):
    """Upper bounds on a candidate; a round beyond them is refused before training."""

    max_params: int = Field(default=2_000_000, ge=1, description="trainable parameters")
    max_flops_per_syndrome: int = Field(
        default=50_000_000, ge=1, description="floating-point operations of the net per shot"
    )
    max_time_ratio: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="CPU time per shot of gate, network and matching together, divided by that of correlated matching "
        "on the same shots, as the verifier measures it; a round is refused before training if the untrained network "
        "exceeds it by half; null: no limit",
    )


class BpSettings(Contract):
    """Belief propagation and its second stage, for the backends `bposd` and `bplsd`."""

    iterations: int = Field(default=30, ge=1, le=10_000, description="at most, of belief propagation")
    method: Literal["minimum_sum", "product_sum"] = Field(
        default="minimum_sum", description="update rule of the check nodes"
    )
    scaling: float = Field(default=0.75, gt=0, le=2, description="minimum_sum only")
    order: int = Field(
        default=0,
        ge=0,
        le=60,
        description="0: OSD-0 / LSD-0, else the order of the CS search; clamped to n - rank(H), for LSD to 24 at most",
    )
    sector: float | None = optional(
        "decode only the detectors whose last coordinate is this; mechanisms that look alike there are one"
    )


class Protocol(Contract):
    """How candidates of this env are verified."""

    min_relative_gain: float = Field(
        default=0.02, ge=0, lt=1, description="lower bound of the relative gain must reach this"
    )
    alpha: float = Field(default=0.05, gt=0, lt=1, description="error budget of the whole run")
    shots_share: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="share of the profile's validation and verification shots, for slow backends",
    )


class EnvSpec(Contract):
    """Content of env.yaml: code, noise, inner decoder, baselines and limits."""

    schema_version: Literal[1] = Field(default=1, description="format of the file")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_]{0,63}$", description="identifier of the env in runs and reports")
    code: Code = Field(description="what is decoded: one of the code sources below")
    noise: Noise = Field(description="one of the noise models below")
    seed_policy: SeedPolicy = Field(description="bands of sampler seeds")
    backend: Literal["mwpm", "bposd", "bplsd"] = Field(
        default="mwpm", description="inner decoder that the predecoder's output goes to"
    )
    bp: BpSettings = Field(default=BpSettings(), description="belief propagation, for backends `bposd` and `bplsd`")
    baselines: tuple[str, ...] = Field(
        default=GRAPH_BACKENDS, description="decoders that the verifier compares a candidate with"
    )
    constraints: Constraints = Field(default=Constraints(), description="upper bounds on a candidate's cost")
    protocol: Protocol = Field(default=Protocol(), description="how candidates are verified")

    @field_validator("baselines")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in BASELINES and not SINTER_DECODER.fullmatch(name) and not PREDICTED_DECODER.fullmatch(name):
                known = f"{', '.join(BASELINES)}, sinter:<module>:<function>:<decoder> and {PREDICTED}<decoder>"
                raise ValueError(f"unknown baseline {name!r}; known: {known}")
        return names

    @model_validator(mode="after")
    def _noise_fits_code(self) -> EnvSpec:
        from_file = self.noise.model == "from_file"
        if self.code.own_noise != from_file:
            kinds = "a code kind that has its own noise, such as `stim_file` or `dem_file`"
            raise ValueError(f"noise model `from_file` requires {kinds}, and vice versa")
        if self.code.backends and self.backend not in self.code.backends:
            raise ValueError(f"code kind `{self.code.kind}` requires backend {' or '.join(self.code.backends)}")
        if not set(ESTIMATED).isdisjoint(self.baselines) and not self.code.own_shots:
            raise ValueError(f"{' and '.join(ESTIMATED)} require a code kind with shots of its own: `recorded_shots`")
        self.require_predictions()
        if self.backend == "mwpm" and "mwpm" not in self.baselines:
            raise ValueError("the plain backend `mwpm` must be among the baselines")
        if self.constraints.max_time_ratio is not None and self.backend != "mwpm":
            raise ValueError(
                "`constraints.max_time_ratio` requires backend `mwpm`: it compares with correlated matching"
            )
        if self.backend != "mwpm" and any(name in GRAPH_BACKENDS for name in self.baselines):
            raise ValueError(f"backend `{self.backend}` has no matching graph, so matching cannot be a baseline")
        if self.backend == "mwpm" and self.bp.sector is not None:
            raise ValueError("`bp.sector` requires backend `bposd` or `bplsd`; matching determines its sector itself")
        return self

    def require_predictions(self) -> None:
        """Raise ValueError for predictions among the baselines that do not come with all shots of the code."""
        known = self.code.predicted_by
        for name in self.predicted_by:
            if known is not None and name not in known:
                listed = ", ".join(f"{PREDICTED}{decoder}" for decoder in known) or "none"
                raise ValueError(f"baseline `{PREDICTED}{name}`: not all shots have its predictions; known: {listed}")

    @model_validator(mode="after")
    def _generator_has_the_noise(self) -> EnvSpec:
        noise, code = self.noise, self.code
        if not isinstance(noise, GENERATOR_NOISE):
            return self
        if not isinstance(code, StimGeneratorCode):
            raise ValueError(f"noise model `{noise.model}` requires code kind `stim_generator`")
        if isinstance(noise, Nvidia25Noise) and not code.task.startswith("surface_code:"):
            raise ValueError(f"noise model `nvidia_25` is for surface codes, not for {code.task}")
        if isinstance(noise, CodeCapacityNoise) and {code.rounds, *(member.rounds for member in code.members)} != {1}:
            raise ValueError("noise model `code_capacity` has perfect checks: `rounds` must be 1")
        return self

    @property
    def predicted_by(self) -> tuple[str, ...]:
        """Names of the decoders whose recorded predictions are baselines, without `recorded:`."""
        return tuple(name.removeprefix(PREDICTED) for name in self.baselines if name.startswith(PREDICTED))

    @property
    def plain(self) -> str:
        """Name of the baseline decoder: the inner decoder alone, relative to which gains are measured."""
        return self.backend

    @property
    def points(self) -> tuple[float | None, ...]:
        """Operating points; (None,) if the noise comes with the file."""
        return self.noise.p if isinstance(self.noise, CircuitDepolarizing) else (None,)

    @property
    def target(self) -> float | None:
        """The p at which decoders are compared; None if the noise comes with the file."""
        return self.noise.target_p if isinstance(self.noise, CircuitDepolarizing) else None

    @property
    def other_members(self) -> tuple[EnvSpec, ...]:
        """Envs of the circuits of a family other than its target, each with this one circuit; () without a family."""
        code = self.code
        if not isinstance(code, StimGeneratorCode):
            return ()
        codes = (code.model_copy(update={**dict(member), "members": ()}) for member in code.members)
        return tuple(
            self.model_copy(update={"code": each})
            for each in codes
            if (each.distance, each.rounds) != (code.distance, code.rounds)
        )
