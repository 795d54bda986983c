"""The noise model of an env that `autoqec add-env` creates, from its options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoqec.errors import UsageError

NAMED_MODELS = ("circuit_depolarizing", "si1000", "phenomenological", "code_capacity")  # p is all they need
CHANNELS = ("gate", "measurement", "reset", "data")
MODEL_OPTIONS = {"noise": "--noise", "eta": "--eta", "channels": "--channels", "noise_file": "--noise-file"}
EXAMPLE = "0.003,0.005,0.01"


def noise_config(
    given_options: dict[str, Any], kind: str, ask: Callable[[str, str, str], str] | None = None
) -> dict[str, Any]:
    """Return the field `noise` of an env.

    Args:
        given_options: Options of `add-env`; None for those that were not given.
        kind: Kind of the env's code.
        ask: Asks for an option that is missing: question, option, default; None: the code has its own noise.

    Raises:
        UsageError: Options contradict each other, or cannot be read.
    """
    given = {name: given_options[name] for name in MODEL_OPTIONS if given_options[name] is not None}
    if ask is None or kind in ("stim_file", "dem_file"):
        more = {"points": "--p", "target": "--target"} | MODEL_OPTIONS
        unused = [option for name, option in more.items() if given_options[name] is not None]
        if unused:
            raise UsageError(f"a {kind} has its own noise", location=unused[0], hint=f"remove {', '.join(unused)}")
        return {"model": "from_file"}
    if len(given) > 1:
        first, *rest = (MODEL_OPTIONS[name] for name in reversed(given))
        raise UsageError("is a noise model of its own", location=first, hint=f"leave {', '.join(rest)} out")
    model = _model(given)
    values = _points(given_options, model, ask)
    target = sorted(values)[len(values) // 2] if given_options["target"] is None else given_options["target"]
    return {**model, "p": values, "target_p": target}


def _model(given: dict[str, Any]) -> dict[str, Any]:
    if "eta" in given:
        return {"model": "circuit_biased", "eta": given["eta"]}
    if "channels" in given:
        return {"model": "circuit_channels", **_channels(given["channels"])}
    if "noise_file" in given:
        return {"model": "nvidia_25", "parameters": _parameters(given["noise_file"])}
    return {"model": given.get("noise", "circuit_depolarizing")}


def _points(given_options: dict[str, Any], model: dict[str, Any], ask: Callable[[str, str, str], str]) -> list[float]:
    """Return the physical error rates; by default that of the noise file."""
    points = split_list(given_options["points"])
    if not points and "parameters" in model:
        from autoqec.contracts.noise import Nvidia25Parameters

        return [Nvidia25Parameters(**model["parameters"]).strength]
    points = points or split_list(ask("Physical error rates, separated by commas", "--p", EXAMPLE))
    try:
        values = [float(point) for point in points]
    except ValueError as error:
        message = f"{','.join(points)!r} is not a list of numbers"
        raise UsageError(message, location="--p", hint=f"--p {EXAMPLE}") from error
    if not values:
        raise UsageError("the list is empty", location="--p", hint=f"--p {EXAMPLE}")
    return values


def _channels(text: str) -> dict[str, float]:
    hint = "--channels gate=1,measurement=5,reset=2,data=0"
    factors: dict[str, float] = {}
    for part in split_list(text):
        name, _, value = part.partition("=")
        try:
            factors[name] = float(value)
        except ValueError as error:
            raise UsageError(f"{part!r} is not NAME=FACTOR", location="--channels", hint=hint) from error
    unknown = [name for name in factors if name not in CHANNELS]
    if unknown or not factors:
        message = f"unknown channel {unknown[0]!r}" if unknown else "the list is empty"
        raise UsageError(f"{message}; known: {', '.join(CHANNELS)}", location="--channels", hint=hint)
    return factors


def _parameters(path: Path) -> dict[str, float]:
    """Read and check a file of 25 parameters; they may also be under the key `noise_model`."""
    from pydantic import ValidationError

    from autoqec.contracts.base import first_validation_error
    from autoqec.contracts.noise import Nvidia25Parameters
    from autoqec.store.files import load_yaml

    hint = f"the file has p_prep_X to p_cnot_ZZ, {len(Nvidia25Parameters.model_fields)} probabilities"
    try:
        content = load_yaml(path.read_text(encoding="utf-8"), location=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", location=str(path), hint="check the path") from error
    content = content.get("noise_model", content) if isinstance(content, dict) else content
    try:
        parameters = Nvidia25Parameters.model_validate(content)
    except ValidationError as error:
        raise UsageError(first_validation_error(error), location=str(path), hint=hint) from error
    try:
        parameters.check_strength()
    except ValueError as error:
        raise UsageError(str(error), location=str(path), hint=hint) from error
    return parameters.dump()


def split_list(text: str | None) -> list[str]:
    """Return the parts of a list separated by commas."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]
