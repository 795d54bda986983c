"""The ideator's view as a search uses it: what was measured, what is pending, and which configs are new."""

from __future__ import annotations

import copy
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property

from autoqec.contracts.base import canonical_json
from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.pins import apply_pins
from autoqec.contracts.round import ForkFrom
from autoqec.contracts.views import IdeatorView, RoundRow
from autoqec.decoders.cost_limits import within_limits
from autoqec.errors import ContractError
from autoqec.ideators import space
from autoqec.ideators.space import Config, Params

ABORTED_STATUSES = ("orphaned_branch", "branch_manually_deleted")  # rows without information about their config
MAX_ABORTED_ATTEMPTS = 2  # aborted rounds after which a config is not proposed again
MAX_REMEMBERED = 20_000  # configs that are not parsed again


@dataclass(frozen=True)
class SearchState:
    """The ideator's view as a search uses it.

    Attributes:
        seed: Seed of the run.
        env: The env; None for a recorded table of configs.
        n_proposed: Number of measured and pending rounds. Rounds aborted by a crash do not count, so that the next
            proposal after a crash is the one that was lost.
        observed: Measured rows, oldest first.
        pending: Rows of rounds that are not measured yet.
        seen_digests: Digests of configs that are not proposed again.
        composed_parents: Parent sets that were composed.
        verified: Forkable verified rows, best first.
        baseline: Config of the baseline commit.
        inputs: What a network of this env reads; `all` for a code without another sector.
        gate_available: Whether a config of this env can have a gate.
        finetunes: Whether the env's inner decoder can be fine-tuned through.
        pins: Keys that the run keeps fixed, with their values; they are not dimensions of its search.
    """

    seed: int
    env: EnvSpec | None
    n_proposed: int
    observed: tuple[RoundRow, ...]
    pending: tuple[RoundRow, ...]
    seen_digests: frozenset[str]
    composed_parents: frozenset[str]
    verified: tuple[RoundRow, ...]
    baseline: Config
    inputs: str
    gate_available: bool
    finetunes: bool
    pins: Params
    templates: tuple[space.Template, ...]

    @classmethod
    def read(cls, view: IdeatorView) -> SearchState:
        """Read the ideator's view (`RunMemory.l2_for_ideator`)."""
        history, pending = view.history, tuple(view.pending)
        observed = tuple(row for row in history if row["status"] not in ABORTED_STATUSES)
        aborted = Counter(_digest(row) for row in history if row["status"] in ABORTED_STATUSES)
        seen_digests = {_digest(row) for row in (*observed, *pending)} | {
            key for key, n in aborted.items() if n >= MAX_ABORTED_ATTEMPTS
        }
        composed = {row["fork_from_canonical"] for row in (*observed, *pending) if row["compose_mode"]}
        verified = [row for row in observed if row["verify_verdict"] == "VERIFIED" and row["forkable"]]
        verified.sort(key=lambda row: (-(row["delta_vs_baseline_holdout"] or 0.0), row["round"]))
        pins = view.pins
        return cls(
            seed=view.seed,
            env=view.env,
            n_proposed=len(observed) + len(pending),
            observed=observed,
            pending=pending,
            seen_digests=frozenset(key for key in seen_digests if key),
            composed_parents=frozenset(composed),
            verified=tuple(verified),
            baseline=apply_pins(space.normalise(view.baseline_config), pins),
            inputs=view.inputs,
            gate_available=view.gate_available,
            finetunes=view.finetunes,
            pins=pins,
            templates=space.templates(view.env, view.inputs),
        )

    def rng(self, purpose: str) -> random.Random:
        """Return a generator that depends on the seed of the run, the number of proposals and the purpose."""
        return random.Random(f"{self.seed}/{self.n_proposed}/{purpose}")

    @cached_property
    def fixed_keys(self) -> frozenset[str]:
        """Keys that are not searched: those of the pins, and `gate` if the env has no complementary gap."""
        pinned = {"gate" if key == "gate.share" else key for key in self.pins}
        return frozenset(pinned) | (frozenset() if self.gate_available else set(space.OPTIONAL_KEYS))

    def active_dimensions(self, family: str) -> list[space.Dimension]:
        """Dimensions of a family that are searched."""
        return [dimension for dimension in space.active_dimensions(family) if dimension.key not in self.fixed_keys]

    def params_of(self, config: Config) -> Params | None:
        """Return the values of the searched dimensions and the family; None if one lies outside the space."""
        return space.params_of(config, exclude=self.fixed_keys - {"type"})

    def build(self, params: Params) -> Config | None:
        """Return the config of these values and the pins; None if they contradict each other."""
        try:
            return self.with_pins(space.build(params))
        except ContractError:
            return None

    def with_pins(self, config: Config) -> Config | None:
        """Return the config with the env's inputs and the pins; None for a family other than the pinned one.

        It has expected labels where a network reads the other sector, and no gate if the env has no complementary gap,
        unless a pin asks for another choice.
        """
        if config["type"] != self.pins.get("type", config["type"]):
            return None
        if not self.gate_available:
            config = space.without(config, space.OPTIONAL_KEYS)
        try:
            config = with_inputs(config, self.inputs)
            if self.env is not None and self.inputs == "other_sector":  # tables of configs were measured without
                config = with_expected_labels(config)
            config = apply_pins(config, self.pins)
            return space.finetuned_through_matching(config, self.pins) if self.has_two_sectors else config
        except ContractError:
            return None

    @property
    def has_two_sectors(self) -> bool:
        """Whether a network can read both sectors, and be fine-tuned through matching with two logical classes."""
        return self.env is not None and self.inputs == "other_sector" and self.finetunes and self.gate_available

    def is_new(self, config: Config) -> bool:
        """Return whether no measured or pending config is equivalent to `config`."""
        if space.digest(config) in self.seen_digests:
            return False
        tried = self._by_recipe.get(self._recipe(parse_dsl(config)))
        if not tried:
            return True
        from autoqec.decoders.equivalence import find_equivalent

        return find_equivalent(parse_dsl(config), tried, finetunes=self.finetunes) is None

    def is_admissible(self, config: Config) -> bool:
        """Return whether `config` is new and its network within the env's limits, so that it is worth a round."""
        return self.is_new(config) and within_limits(config, self.env)

    def _recipe(self, dsl: PredecoderDSL) -> str:
        return _recipe(dsl, finetunes=self.finetunes)

    @cached_property
    def _by_recipe(self) -> dict[str, list[PredecoderDSL]]:
        """Tried configs by training signature: only configs with the same one can be equivalent."""
        by_recipe: dict[str, list[PredecoderDSL]] = defaultdict(list)
        for tried in map(_tried, (*self.observed, *self.pending)):
            if tried.digest in self.seen_digests:
                by_recipe[tried.recipe(finetunes=self.finetunes)].append(tried.dsl)
        return by_recipe

    def config_of(self, fork_from: ForkFrom) -> Config | None:
        """Return the config of a branch or of the baseline; None for an unknown branch."""
        if fork_from == "baseline":
            return self.baseline
        return next((row["dsl_config"] for row in self.observed if row["branch"] == fork_from), None)


def with_inputs(config: Config, inputs: str) -> Config:
    """Return the config with this choice of the network's inputs."""
    return config | {config["type"]: config[config["type"]] | {"inputs": inputs}}


def with_expected_labels(config: Config) -> Config:
    """Return the config with the labels of smaller variance; see `qec.expected_labels`."""
    return config | {"training": config["training"] | {"labels": "expected"}}


class _TriedConfig:
    """What follows from a config that was tried, computed when it is needed."""

    def __init__(self, config: Config | None) -> None:
        self._config = config
        self._recipes: dict[bool, str] = {}

    @cached_property
    def digest(self) -> str | None:
        return space.digest(self._config) if self._config else None

    @cached_property
    def dsl(self) -> PredecoderDSL:
        return parse_dsl(self._config)

    def recipe(self, *, finetunes: bool) -> str:
        if finetunes not in self._recipes:
            self._recipes[finetunes] = _recipe(self.dsl, finetunes=finetunes)
        return self._recipes[finetunes]


_TRIED: dict[str, _TriedConfig] = {}  # by the text of the config


def _tried(row: RoundRow) -> _TriedConfig:
    """Return what follows from the config of a row; remembered, since every proposal reads all rows."""
    text = repr(row["dsl_config"])
    if text not in _TRIED:
        if len(_TRIED) >= MAX_REMEMBERED:
            _TRIED.clear()
        _TRIED[text] = _TriedConfig(copy.deepcopy(row["dsl_config"]))
    return _TRIED[text]


def _recipe(dsl: PredecoderDSL, *, finetunes: bool) -> str:
    return canonical_json(dsl.training_signature(finetunes=finetunes))


def _digest(row: RoundRow) -> str | None:
    return _tried(row).digest
