"""What to do after a failed or useless round: in words, and as the smallest change of the config.

Advice is given only where a command or option would accept it.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import ValidationError

from autoqec.contracts.dsl import (
    DEPTH_FIELDS,
    FAMILIES,
    WIDTH_FIELDS,
    PredecoderDSL,
    TrainingConfig,
    differing_keys,
    flatten,
)
from autoqec.contracts.profiles import ProfileName, profile_of
from autoqec.decoders.cost_limits import exceeded_limits, predict_cost
from autoqec.errors import AutoqecError
from autoqec.store.files import parse_env
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import RoundState


def larger_profile(profile: str) -> str:
    """Return the advice to start a run with the next larger profile; empty for the largest."""
    names = get_args(ProfileName)
    larger = names[names.index(profile) + 1 :][:1]
    if not larger:
        return ""
    found = profile_of(larger[0])
    return (
        f"start a run with --profile {found.name}: {found.train_shots:,} training, {found.val_shots:,} validation and "
        f"up to {found.judge_test_shots:,} verification shots per round"
    )


def can_start_finetuning(config: dict[str, Any] | None, backend: str = "mwpm") -> bool:
    """Return whether a config trains without the inner decoder although it could train through it."""
    config = config or {}
    is_off = (config.get("training") or {}).get("finetune_share") == 0
    return is_off and backend == "mwpm" and config.get("output_mode", "soft_priors") == "soft_priors"


def without_effect(config: dict[str, Any] | None, backend: str, profile: str | None) -> str:
    """Return what to change after a round without an effect; only what is not so already."""
    if can_start_finetuning(config, backend):
        return "train through the inner decoder: training.finetune_share above 0"
    if profile is None:
        return "train longer: a larger profile"
    return larger_profile(profile) or "change the architecture; no profile is larger"


def after_harm(config: dict[str, Any] | None) -> str:
    """Return what to change after a round that broke more shots than it fixed; only what is not so already."""
    config = config or {}
    block, training = config.get(str(config.get("type"))) or {}, config.get("training") or {}
    changes = []
    if config.get("output_mode") == "hard_flip":
        changes.append("use output_mode soft_priors: hard flips often harm")
    if isinstance(block, dict) and block.get("inputs") == "all":
        changes.append("read inputs other_sector: detectors of the observable's sector count evidence twice")
    if training.get("finetune_share", 1.0) and not changes:
        changes.append("use a smaller training.finetune_learning_rate")
    return "; ".join(changes) or "use a smaller network or learning rate"


def resume_command(layout: RunLayout, finished: int) -> str:
    """Return the advice to continue a run of `finished` rounds; empty for a closed run."""
    return "" if layout.secret_hex.exists() else f"autoqec run --resume {layout.run_id} --rounds {finished + 5}"


def adopt_command(layout: RunLayout, attempts: tuple[RoundState, ...]) -> str:
    """Return the command that restores the first restorable of the aborted rounds; empty if there is none."""
    if layout.secret_hex.exists():
        return ""
    for attempt in attempts:
        if attempt.lost and attempt.branch is not None and _was_measured(layout, attempt.row.round):
            return f"autoqec adopt {layout.run_id} {attempt.row.round}"
    return ""


def _was_measured(layout: RunLayout, number: int) -> bool:
    try:
        metrics = json.loads(layout.round(number).metrics.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(metrics, dict) and metrics.get("status") == "ok"


Config = dict[str, Any]
SHRINK_FACTORS = (0.75, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)
LEARNING_RATE_FACTOR = 1 / 3  # of a learning rate at which the loss diverged
MIN_BATCH_SIZE = 64
FIRST_GATE = 6.0  # nats; keeps the gain (docs/results/gated-decoding.md)
GATE_FACTOR = 2 / 3
MIN_USEFUL_GATE = 3.0  # nats; at 2 nats nothing is left of the gain at d=7


def suggest_config(
    cause: str, config: Config | None, phase: str, env_yaml: str | None
) -> tuple[dict[str, list[Any]] | None, Config | None]:
    """Suggest a config for a cause that `diagnose` found.

    Args:
        cause: A `Cause` of `diagnose`.
        config: The config of the round.
        phase: What the round was doing when it ended: `training` or `finetuning`.
        env_yaml: The run's env; without it a smaller network is not checked against the env's limits.

    Returns:
        ({key: [old, new]}, new config); (None, None) if no config removes the cause.
    """
    if config is None:
        return None, None
    for candidate in _candidates(cause, config, phase, env_yaml):
        try:
            patched = PredecoderDSL.model_validate(candidate).config()
        except ValidationError:
            continue
        keys = differing_keys(patched, config)
        if keys:
            old, new = flatten(config), flatten(patched)
            # Keys whose default is now written out have not changed.
            changes = {key: [old.get(key), new.get(key)] for key in keys if key in old or not _is_default(patched, key)}
            return changes, patched
    return None, None


def config_problems(config: Config | None) -> list[str]:
    """List what the contract rejects in a config; empty if it is valid."""
    if config is None:
        return ["config.yaml is missing, or not a mapping"]
    try:
        PredecoderDSL.model_validate(config)
    except ValidationError as error:
        return [f"{'.'.join(map(str, problem['loc'])) or 'config'}: {problem['msg']}" for problem in error.errors()[:5]]
    return []


def _candidates(cause: str, config: Config, phase: str, env_yaml: str | None) -> Iterator[Config]:
    training = config.get("training") or {}
    if cause == "bad config":
        yield _without_invalid_keys(config)
    elif cause == "not finite":
        key = "finetune_learning_rate" if phase == "finetuning" else "learning_rate"
        default = TrainingConfig.model_fields[key].default
        rate = float(training.get(key, default))
        yield _with_value(config, "training", key, float(f"{rate * LEARNING_RATE_FACTOR:.2g}"))
    elif cause == "out of memory":
        yield from _smaller_batches(config)
        yield from _smaller(config)
    elif cause == "time limit":
        yield from _smaller(config, start=0.5)
    elif cause == "cost limit":
        yield from (smaller for smaller in _smaller(config) if _within_limits(smaller, env_yaml))
    elif cause == "too slow":
        yield from _fewer_shots(config, env_yaml)
        yield from _smaller(config, start=0.5)
    elif cause == "does not fit" and training.get("init") == "parent":
        yield _with_value(config, "training", "init", "fresh")
    elif cause == "does harm":
        yield from _less_harmful(config)
    elif cause == "no effect" and can_start_finetuning(config):
        yield _with_value(config, "training", "finetune_share", 1.0)


def _smaller_batches(config: Config) -> Iterator[Config]:
    batch = int((config.get("training") or {}).get("batch_size", 512))
    if batch > MIN_BATCH_SIZE:
        yield _with_value(config, "training", "batch_size", max(MIN_BATCH_SIZE, batch // 2))


def _smaller(config: Config, *, start: float = 1.0) -> Iterator[Config]:
    """Yield the same family with fewer and fewer channels; finally with a single layer."""
    family = str(config.get("type"))
    block = config.get(family)
    if family not in FAMILIES or not isinstance(block, dict):
        return
    defaults = PredecoderDSL.model_validate({"type": family, family: {}}).config()[family]
    size_key = WIDTH_FIELDS.get(family) or DEPTH_FIELDS[family]
    depth_key = DEPTH_FIELDS.get(family) if family in WIDTH_FIELDS else None
    width = int(block.get(size_key, defaults[size_key]))
    depth = int(block.get(depth_key, defaults[depth_key])) if depth_key else 1
    for factor in SHRINK_FACTORS:
        if factor <= start and math.floor(width * factor) >= 1:
            yield _with_value(config, family, size_key, math.floor(width * factor))
    if depth_key and depth > 1:
        narrowest = _with_value(config, family, size_key, max(1, math.floor(width * SHRINK_FACTORS[-1])))
        yield _with_value(narrowest, family, depth_key, 1)


def _fewer_shots(config: Config, env_yaml: str | None) -> Iterator[Config]:
    """Let fewer shots reach the network: with a gate, or with a lower one than there is."""
    gate = config.get("gate")
    if gate is None and _can_have_gate(env_yaml):
        yield {**config, "gate": FIRST_GATE}
    elif isinstance(gate, dict):
        yield {**config, "gate": {**gate, "share": gate["share"] / 2}}
    elif gate is not None and gate * GATE_FACTOR >= MIN_USEFUL_GATE:
        yield {**config, "gate": round(gate * GATE_FACTOR, 2)}


def _can_have_gate(env_yaml: str | None) -> bool:
    """Return whether the env's problem has a complementary gap; without an env it is not known."""
    if env_yaml is None:
        return False
    from autoqec.decoders.gating import has_gap
    from autoqec.qec.problem import Problem

    try:
        return has_gap(Problem.from_env(parse_env(env_yaml, location="env")))
    except (AutoqecError, ValueError):
        return False


def _less_harmful(config: Config) -> Iterator[Config]:
    """Undo what is known to break more shots than it fixes, one change at a time."""
    family = str(config.get("type"))
    block = config.get(family)
    if config.get("output_mode") == "hard_flip":
        yield {**config, "output_mode": "soft_priors"}
    if isinstance(block, dict) and block.get("inputs") == "all":
        yield _with_value(config, family, "inputs", "other_sector")
    training = config.get("training") or {}
    if training.get("finetune_share", 1.0):
        rate = float(training.get("finetune_learning_rate", 3e-4))
        yield _with_value(config, "training", "finetune_learning_rate", float(f"{rate * LEARNING_RATE_FACTOR:.2g}"))


def _within_limits(config: Config, env_yaml: str | None) -> bool:
    """Return whether the config respects the env's limits; without an env there are none."""
    if env_yaml is None:
        return True
    env = parse_env(env_yaml, location="env")
    try:
        return not exceeded_limits(predict_cost(env, PredecoderDSL.model_validate(config)), env.constraints)
    except (AutoqecError, ValidationError, ValueError):
        return False


def _without_invalid_keys(config: Config) -> Config:
    """Remove invalid keys, so that their defaults apply."""
    patched = copy.deepcopy(config)
    for _ in range(8):
        try:
            PredecoderDSL.model_validate(patched)
            break
        except ValidationError as error:
            for problem in error.errors():
                _drop(patched, [str(part) for part in problem["loc"]])
    return patched


def _drop(config: Config, path: list[str]) -> None:
    for part in path[:-1]:
        inner = config.get(part)
        if not isinstance(inner, dict):
            return
        config = inner
    if path:
        config.pop(path[-1], None)


def _with_value(config: Config, block: str, key: str, value: Any) -> Config:
    return {**config, block: {**(config.get(block) or {}), key: value}}


def _is_default(patched: Config, key: str) -> bool:
    family = patched["type"]
    default_values = flatten(PredecoderDSL.model_validate({"type": family, family: {}}).config())
    return flatten(patched).get(key) == default_values.get(key)
