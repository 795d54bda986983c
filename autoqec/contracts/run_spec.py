"""The specification of a run: the options of `autoqec run`, which run.json stores and a resume updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import Field
from pydantic.fields import FieldInfo

from autoqec.contracts.base import Contract, optional
from autoqec.contracts.profiles import MAX_SCALE, MIN_SCALE, Profile, ProfileName, profile_of


@dataclass(frozen=True)
class Option:
    """Marks a field as an option of `autoqec run`; type, limits, default and help (`description`) are the field's.

    A field with `exclude=True` is not stored: it holds for one start of the run only.

    Attributes:
        metavar: Placeholder of the value in the help.
        name: Name of the option if it is another than that of the field.
        path: Whether the value is a path; a stored one is relative to the workspace if it lies in it.
        multiple: Whether the option can be repeated, although the field is not a tuple.
        negatable: Whether a flag can also be given as `--no-NAME`, so that a resume can switch it off.
        fixed: Whether a resume may not change the value.
        varies: Whether the default depends on other values, and the help says how.
    """

    metavar: str | None = None
    name: str | None = None
    path: bool = False
    multiple: bool = False
    negatable: bool = False
    fixed: bool = False
    varies: bool = False


class OptionField(NamedTuple):
    """A field that is an option: the option's name with underscores, the field's name, the field, and its mark."""

    name: str
    field_name: str
    field: FieldInfo
    option: Option


def option_fields(model: type[Contract]) -> Iterator[OptionField]:
    """Yield the options among the fields of a model."""
    for field_name, field in model.model_fields.items():
        for option in field.metadata:
            if isinstance(option, Option):
                yield OptionField(option.name or field_name, field_name, field, option)


class RunSpec(Contract):
    """What a run does; every option of `autoqec run` is one field. `extensions` holds those of `PluginOptions`."""

    rounds: Annotated[int | None, Option()] = Field(
        default=None,
        ge=1,
        description="Number of finished rounds, including those before --resume; default: 3 if no --budget is given.",
    )
    profile: Annotated[ProfileName, Option(fixed=True)] = Field(
        default="dev",
        description="Training and verification effort per round: seconds (to try it out), minutes or hours.",
    )
    scale: Annotated[float, Option(fixed=True, varies=True)] = Field(
        default=1.0,
        ge=MIN_SCALE,
        le=MAX_SCALE,
        description="Factor on the profile's training and verification; default: 1, in `dev` up to 5 for large "
        "matching graphs.",
    )
    seed: Annotated[int, Option(fixed=True)] = Field(
        default=1, ge=0, le=2**31 - 1, description="Random seed of the proposals and of training."
    )
    secret_file: Annotated[Path | None, Option(path=True, fixed=True)] = Field(
        default=None, exclude=True, description="File with the secret of the verification shots; for tests only."
    )
    recorded: Annotated[Path | None, Option("DIR", path=True)] = Field(
        default=None,
        exclude=True,
        description="Directory of the run's recorded shots, if it has moved; compared with the hashes in the run's "
        "env.",
    )
    ideator: Annotated[str, Option(fixed=True)] = Field(default="tpe", description="Method that proposes the rounds.")
    pins: Annotated[dict[str, Any], Option("KEY=VALUE", name="pin", multiple=True, fixed=True)] = Field(
        default={},
        description="Fix a key of the config in every proposal, e.g. type=gnn or training.loop=async. Repeatable.",
    )
    replay_of: Annotated[str | None, Option("RUN")] = optional("Earlier run whose proposals --ideator replay repeats.")
    parallel: Annotated[int, Option()] = Field(
        default=1, ge=1, description="Number of rounds trained at the same time."
    )
    threads: Annotated[int, Option()] = Field(
        default=1, ge=1, description="Number of CPU threads, shared by parallel rounds."
    )
    executor: Annotated[str, Option()] = Field(
        default="local", description="Where rounds are trained; others than local submit each as a job."
    )
    budget: Annotated[dict[str, float], Option("KEY=NUMBER,…")] = Field(
        default={},
        description="Limits; the run stops at the first one reached. hours: elapsed time from this start, or from the "
        "start of a detached run, including its time in the queue; compute_hours, cpu_hours, gpu_hours: training and "
        "validation; plateau: rounds without a change of the Pareto front; usd, tokens: language models; rounds.",
    )
    extensions: dict[str, Any] = Field(default={}, description="name of a block -> options that an extension added")

    def scaled_profile(self) -> Profile:
        """Return the profile with its amounts times the scale."""
        return profile_of(self.profile, self.scale)

    def fields(self) -> dict[str, Any]:
        """Return the fields of a specification, without those that a subclass adds."""
        return {name: getattr(self, name) for name in RunSpec.model_fields}

    @property
    def round_threads(self) -> int:
        """Threads of one round: a share of `threads` if several rounds run on this machine."""
        return max(1, self.threads // self.parallel) if self.executor == "local" else self.threads

    def settings(self) -> dict[str, Any]:
        """Return the stored values that a resume may change, those of extensions by their own names."""
        fixed = {each.field_name for each in option_fields(RunSpec) if each.option.fixed}
        values = self.model_dump(mode="json", include={*RunSpec.model_fields} - fixed)
        blocks = values.pop("extensions")
        return values | {name: value for block in blocks.values() for name, value in block.items()}

    def with_block(self, options: PluginOptions) -> Self:
        """Return the specification with these options of an extension; without a block if all are the defaults."""
        others = {name: block for name, block in self.extensions.items() if name != options.block}
        own = {} if options == type(options)() else {options.block: options}
        return self.model_copy(update={"extensions": others | own})


class PluginOptions(Contract):
    """Options that an extension adds to `autoqec run`, stored in run.json under `extensions` and the name of the block.

    A subclass declares one as `name: Annotated[int, Option()] = Field(default=1, ge=1, description="help")`; every
    field has a default. Fields without `Option` are stored too: `check` of the plugin fills them in.
    """

    block: ClassVar[str] = ""
    budget_keys: ClassVar[Mapping[str, str]] = {}  # limits of `--budget` that the extension observes: KEY -> unit

    @classmethod
    def of(cls, spec: RunSpec) -> Self:
        """Read the block of a specification; the defaults if it has none.

        Raises:
            ContractError: The block is damaged.
        """
        block = spec.extensions.get(cls.block, {})
        return block if isinstance(block, cls) else cls.read(block, location=f"run.json: extensions.{cls.block}")
