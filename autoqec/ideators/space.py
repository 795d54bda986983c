"""The search space of predecoder configs: one dimension per config key."""

from __future__ import annotations

import math
import random
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

from autoqec.contracts.dsl import FAMILIES, PredecoderDSL, flatten, parse_dsl, unflatten, value_at
from autoqec.contracts.env import EnvSpec, StimGeneratorCode
from autoqec.errors import ContractError

Config = dict[str, Any]
Params = dict[str, Any]  # dotted DSL key -> value


@dataclass(frozen=True)
class Dimension:
    """One config key and the values it may take.

    Attributes:
        key: Dotted key of the config.
        rationale: What a change of the key is expected to do.
        families: Families that have the key; () for all.
        choices: Values of a categorical dimension.
        low: Smallest number of a numeric dimension, on a log scale; an int makes it a dimension of whole numbers.
        high: Largest number.
    """

    key: str
    rationale: str
    families: tuple[str, ...] = ()
    choices: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0

    def contains(self, value: Any) -> bool:
        """Return whether the dimension can take this value."""
        if self.choices:
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high

    def rounded(self, value: Any) -> Any:
        """Return the value as written to a config: three significant digits for a real number."""
        if self.choices:
            return value
        if isinstance(self.low, int):
            return round(value)
        return min(max(float(f"{value:.3g}"), self.low), self.high)

    def draw(self, rng: random.Random) -> Any:
        """Return a uniformly drawn value, numbers uniform on a log scale."""
        if self.choices:
            return rng.choice(self.choices)
        return self.rounded(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))

    def step(self, value: Any, rng: random.Random) -> Any:
        """Return a value next to `value`; None if there is no other value."""
        if self.choices:
            others = [choice for choice in self.choices if choice != value]
            return rng.choice(others) if others else None
        factors = [factor for factor in (0.5, 2 / 3, 1.5, 2.0) if self.contains(self.rounded(value * factor))]
        moved = [self.rounded(value * factor) for factor in factors]
        moved = [other for other in moved if other != value]
        return rng.choice(moved) if moved else None

    def step_from(self, params: Params, rng: random.Random) -> Any:
        """Return a value next to that in `params`, or a drawn one if the key is missing; None if there is no other."""
        return self.step(params[self.key], rng) if self.key in params else self.draw(rng)


FAMILIES_WITH_HEAD = ("mlp", "gnn", "conv", "local")  # families whose hidden features a head maps
MESSAGE_FUNCTIONS = ("mlp", "gated_mlp", "attention", "gru_cell", "edge_attention", "residual_mlp")
AGGREGATIONS = ("sum", "mean", "max", "attention_pool", "gated_sum")

# `inputs` is not a dimension: a network that is trained on labels and reads its own sector counts evidence twice that
# matching uses. Networks of type `local` read it where they are fine-tuned, see `finetuned_through_matching`.
# Widths are limited so that d=5 keeps the limits of the envs and trains in minutes on a laptop.
SEARCH_SPACE: tuple[Dimension, ...] = (
    Dimension("type", "another family sees other structure", choices=FAMILIES),
    Dimension("mlp.hidden", "width sets how many error patterns it can tell apart", ("mlp",), low=64, high=768),
    Dimension("mlp.depth", "depth composes patterns across the lattice", ("mlp",), low=1, high=4),
    Dimension("mlp.activation", "smoother units train differently", ("mlp",), choices=("relu", "gelu", "silu")),
    Dimension("mlp.skip", "a linear path carries the pairwise part", ("mlp",), choices=(True, False)),
    Dimension("gnn.hidden", "width sets what a message can say", ("gnn",), low=8, high=64),
    Dimension("gnn.layers", "layers set how far evidence travels", ("gnn",), low=2, high=6),
    Dimension("gnn.message_fn", "gates let a message be ignored", ("gnn",), choices=MESSAGE_FUNCTIONS),
    Dimension("gnn.aggregation", "how messages add up", ("gnn",), choices=AGGREGATIONS),
    Dimension("gnn.normalization", "normalised states train more evenly", ("gnn",), choices=("none", "layer", "batch")),
    Dimension("gnn.residual", "residual states keep what was seen", ("gnn",), choices=(True, False)),
    Dimension("gnn.edge_features", "the prior in the message tells likely edges", ("gnn",), choices=(True, False)),
    Dimension("neural_bp.iterations", "more rounds of messages settle more", ("neural_bp",), low=2, high=12),
    Dimension(
        "neural_bp.weight_sharing", "own weights fit more", ("neural_bp",), choices=("none", "per_layer", "per_check")
    ),
    Dimension(
        "neural_bp.damping", "damping calms oscillation", ("neural_bp",), choices=("fixed", "learnable_per_iter")
    ),
    Dimension("conv.channels", "channels set how many patterns a cell can tell apart", ("conv",), low=4, high=48),
    Dimension("conv.layers", "layers set how far evidence travels", ("conv",), low=2, high=6),
    Dimension("conv.kernel", "a wider kernel sees further in one layer", ("conv",), choices=(3, 5)),
    Dimension("conv.residual", "residual cells keep what was seen", ("conv",), choices=(True, False)),
    Dimension("local.hidden", "width sets how many patterns a window can tell apart", ("local",), low=16, high=128),
    Dimension("local.depth", "depth composes patterns in the window", ("local",), low=1, high=4),
    Dimension("local.space", "a wider window sees further", ("local",), choices=(1, 2, 3)),
    Dimension("local.time", "a longer window sees earlier and later rounds", ("local",), choices=(1, 2, 3)),
    Dimension("head", "a small head bends the last map", FAMILIES_WITH_HEAD, choices=("linear", "mlp_small")),
    # Below 4 nats much of the gain is lost at d=7, and little time is saved: docs/results/gated-decoding.md
    Dimension("gate", "a smaller gate sends fewer shots to the network", low=4.0, high=10.0),
    Dimension("training.loss", "the loss sets which edges count", choices=("bce", "focal", "weighted_bce")),
    Dimension("training.learning_rate", "the step size sets how far training gets", low=5e-4, high=1e-2),
    Dimension("training.batch_size", "smaller batches take more steps", choices=(64, 128, 256, 512, 1024, 2048)),
    Dimension("training.weight_decay", "decay trades fit for smoothness", low=1e-6, high=1e-2),
    Dimension("training.finetune_learning_rate", "the step size through the matching", low=3e-5, high=3e-3),
    Dimension("training.finetune_share", "more shots through the matching", choices=(0.0, 0.5, 1.0)),
    Dimension("training.finetune_gap", "which shots count as near failure", low=3.0, high=12.0),
)
OPTIONAL_KEYS = ("gate",)  # keys that a config may leave out; then its params lack them too
DIMENSION_BY_KEY = {dimension.key: dimension for dimension in SEARCH_SPACE}


@dataclass(frozen=True)
class Template:
    """A config that is tried before any search."""

    slug: str
    hypothesis: str
    config: Config


# Both cost less than correlated matching, and keep the gain: docs/results/gated-decoding.md
TEMPLATE_GATE = 4.0
LOCAL_GATE = 6.0  # larger codes have more failures above 4 nats

TEMPLATES: tuple[Template, ...] = (
    Template(
        slug="mlp-template",
        hypothesis="A dense network on the detectors of the other sector supplies the correlations that matching "
        "ignores, so weights per shot should beat fixed weights",
        config=PredecoderDSL(type="mlp", mlp={}, gate=TEMPLATE_GATE).config(),
    ),
)
# Fine-tuning shots per labelled shot, where the decoded sector is read: docs/results/local-predecoder.md
LOCAL_FINETUNE_RATIO = 4.0
LOCAL_TEMPLATE = Template(
    slug="local-template",
    hypothesis="Weights shared over space and time learn from every edge of a shot, so a large surface code needs "
    "fewer shots than with a dense network",
    config=PredecoderDSL(
        type="local",
        local={"inputs": "all_in_finetuning"},
        gate=LOCAL_GATE,
        training={
            "batch_size": 64,
            "learning_rate": 0.01,
            "finetune_learning_rate": 1.5e-3,
            "finetune_ratio": LOCAL_FINETUNE_RATIO,
        },
    ).config(),
)
MIN_LOCAL_DISTANCE = 7  # docs/results/local-predecoder.md; smaller codes were not compared in a profile


def templates(env: EnvSpec | None, inputs: str) -> tuple[Template, ...]:
    """Return the configs that are tried first.

    Args:
        env: the env; None for a recorded table of configs.
        inputs: the detectors that a network of this env reads.
    """
    if env is None or env.backend != "mwpm" or inputs != "other_sector":
        return TEMPLATES
    code = env.code
    if not isinstance(code, StimGeneratorCode) or not code.task.startswith("surface_code:"):
        return TEMPLATES
    if code.members:
        return (LOCAL_TEMPLATE,)
    return (LOCAL_TEMPLATE, *TEMPLATES) if code.distance >= MIN_LOCAL_DISTANCE else TEMPLATES


def format_value(value: Any) -> str:
    """Return a value as text, real numbers in short form."""
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe_changes(before: Params, after: Params, keys: Iterable[str]) -> tuple[str, str]:
    """Return the changes of some keys as text, and what these changes are expected to do."""
    keys = list(keys)
    changes = ", ".join(f"{key} {format_value(before.get(key))} -> {format_value(after[key])}" for key in keys)
    return changes, "; ".join(DIMENSION_BY_KEY[key].rationale for key in keys)


def without(config: Config, keys: Container[str]) -> Config:
    """Return the config without these top-level keys."""
    return {key: value for key, value in config.items() if key not in keys}


def normalise(config: Config) -> Config:
    """Return the config with every default written out. ContractError if it is not valid."""
    return parse_dsl(config).config()


def finetuned_through_matching(config: Config, pinned: Container[str] = ()) -> Config:
    """Return a config of type `local` with the inputs and the budget that suit its fine-tuning.

    Args:
        config: A complete config.
        pinned: Keys that are left as they are.
    """
    if config["type"] != "local" or config["output_mode"] != "soft_priors" or config["training"]["finetune_share"] == 0:
        return config
    if "local.inputs" not in pinned:
        config = config | {"local": config["local"] | {"inputs": "all_in_finetuning"}}
    if "training.finetune_ratio" not in pinned:
        config = config | {"training": config["training"] | {"finetune_ratio": LOCAL_FINETUNE_RATIO}}
    return normalise(config)


def digest(config: Config) -> str | None:
    """Return the hash of a config; None if it is not valid."""
    try:
        return parse_dsl(config).sha256()
    except ContractError:
        return None


def active_dimensions(family: str) -> list[Dimension]:
    """Return the dimensions of a family."""
    return [dimension for dimension in SEARCH_SPACE if not dimension.families or family in dimension.families]


def build(params: Params) -> Config:
    """Return a config from values of the active dimensions; other keys have their defaults."""
    config = unflatten(params)
    config.setdefault(params["type"], {})
    return normalise(config)


def params_of(config: Config, *, exclude: Container[str] = ()) -> Params | None:
    """Return the inverse of `build`.

    Args:
        config: A complete config.
        exclude: Keys that are left out and not checked.

    Returns:
        Values of the active dimensions; None if one lies outside the space.
    """
    params: Params = {}
    for dimension in active_dimensions(config.get("type", "")):
        if dimension.key in exclude or (dimension.key in OPTIONAL_KEYS and dimension.key not in config):
            continue
        try:
            value = value_at(config, dimension.key)
        except (KeyError, TypeError):
            return None
        if not dimension.contains(value):
            return None
        params[dimension.key] = value
    return params if config.get("type") in FAMILIES else None


def changed_keys(config: Config, base: Config) -> dict[str, Any]:
    """Dotted keys whose value differs from `base`, with the value in `config`; None for a key that it lacks."""
    mine, theirs = flatten(config), flatten(base)
    keys = [*mine, *(key for key in theirs if key not in mine)]
    return {key: mine.get(key) for key in keys if key not in theirs or key not in mine or mine[key] != theirs[key]}
