"""Reading and writing `checkpoint.pt`: {class_name, state_dict, output_mode, dsl_config}, tensors and plain values.

A config whose gate is a share of shots adds `gate_nats`, the gate that calibration gave.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autoqec.contracts.dsl import MAX_GATE, GateShare, PredecoderDSL, parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.decoders.base import Predecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.errors import ContractError
from autoqec.qec.codes import Source, build_source, circuit_sha256
from autoqec.qec.problem import Problem

CHECKPOINT_KEYS = {"class_name", "state_dict", "output_mode", "dsl_config"}
GATE_NATS = "gate_nats"
MAX_BYTES = 2**31


def save(path: Path, model: Predecoder, dsl: PredecoderDSL, config: dict[str, Any] | None = None) -> None:
    """Write a checkpoint.

    Args:
        path: The file.
        model: The predecoder.
        dsl: Its config.
        config: The literal config that `dsl` was parsed from; by default the config with every default written out.
    """
    payload: dict[str, Any] = {
        "class_name": type(model.body).__name__,
        "state_dict": {name: value.detach().cpu() for name, value in model.state_dict().items()},
        "output_mode": model.output_mode,
        "dsl_config": config if config is not None else dsl.config(),
    }
    if isinstance(dsl.gate, GateShare):
        assert model.gate is not None, "the gate is calibrated before the checkpoint is written"
        payload[GATE_NATS] = model.gate
    torch.save(payload, path)


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint without running code from it.

    Raises:
        ContractError: The file is missing, malformed or too large, or holds tensors that are not dense and finite.
    """
    location = str(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ContractError(f"checkpoint is larger than {MAX_BYTES} bytes", location=location)
        payload = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ContractError("checkpoint is missing", location=location, hint="run the round again") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise ContractError(f"checkpoint cannot be read safely ({reason})", location=location) from error
    if not isinstance(payload, dict) or set(payload) - {GATE_NATS} != CHECKPOINT_KEYS:
        raise ContractError(f"checkpoint must contain exactly {', '.join(sorted(CHECKPOINT_KEYS))}", location=location)
    for name, value in payload["state_dict"].items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not value.is_contiguous():
            raise ContractError(f"`{name}` is not a plain dense tensor", location=location)
        if value.is_floating_point() and not torch.isfinite(value).all():
            hint = "use another round's checkpoint"
            raise ContractError(f"`{name}` holds values that are not finite", location=location, hint=hint)
    return payload


def load(path: Path, problem: Problem) -> tuple[Predecoder, PredecoderDSL]:
    """Load a checkpoint for `problem` and return the predecoder, in eval mode, with its config.

    Raises:
        ContractError: The checkpoint is malformed, or was made for another circuit or architecture.
    """
    payload = read(path)
    dsl = _config(payload, path)
    require_circuit(payload, problem.source, str(path))
    model = compile_predecoder(dsl, problem, seed=0)
    restore(model, payload["state_dict"], location=str(path))
    model.gate = _gate(payload, dsl, str(path))
    return model.eval(), dsl


def read_config(path: Path, env: EnvSpec) -> PredecoderDSL:
    """Return the config of a checkpoint that was made for the circuit of an env; the env's problem is not built.

    Raises:
        ContractError: The checkpoint is malformed, or was made for another circuit.
    """
    payload = read(path)
    dsl = _config(payload, path)
    require_circuit(payload, build_source(env, env.target), str(path))
    return dsl


def _config(payload: dict[str, Any], path: Path) -> PredecoderDSL:
    return parse_dsl(payload["dsl_config"], location=f"{path}, key dsl_config")


def require_circuit(payload: dict[str, Any], source: Source, location: str) -> None:
    """Raise ContractError unless the content of a checkpoint, which lies at `location`, was made for a circuit."""
    stored, expected = payload["state_dict"].get("circuit_sha256"), circuit_sha256(source)
    recorded = None if stored is None else bytes(stored.tolist()).hex()
    if recorded != expected:
        raise ContractError(
            f"checkpoint was made for circuit {(recorded or '(none)')[:12]}, this env's circuit is {expected[:12]}",
            location=location,
            hint="use the env the checkpoint was trained on",
        )


def resolved_gate(path: Path, dsl: PredecoderDSL) -> float | None:
    """Return the gate of a config in nats, from its checkpoint if the config names a share of shots.

    Raises:
        ContractError: The checkpoint cannot be read safely, or does not hold a gate in nats.
    """
    return _gate(read(path) if isinstance(dsl.gate, GateShare) else {}, dsl, str(path))


def _gate(payload: dict[str, Any], dsl: PredecoderDSL, location: str) -> float | None:
    if not isinstance(dsl.gate, GateShare):
        return dsl.gate
    nats = payload.get(GATE_NATS)
    if type(nats) is not float or not 0 < nats <= MAX_GATE:
        message = f"`{GATE_NATS}` is {str(nats)[:40]}, expected a number of nats above 0 and at most {MAX_GATE:g}"
        raise ContractError(message, location=location, hint="run the round again")
    return nats


def load_for_member(path: Path, problem: Problem) -> tuple[Predecoder, PredecoderDSL]:
    """Load a checkpoint of a family's target for another circuit of the family.

    Returns:
        The predecoder, in eval mode, with its config.

    Raises:
        ContractError: The checkpoint is malformed, its weights belong to one circuit, or some of the circuit's are
            missing.
    """
    payload, dsl = read_translation_invariant(path)
    model = compile_predecoder(dsl, problem, seed=0)
    own = model.state_dict()
    state = {name: value for name, value in payload["state_dict"].items() if name in own}
    restore(model, state | {"circuit_sha256": own["circuit_sha256"]}, location=str(path))
    model.gate = _gate(payload, dsl, str(path))
    return model.eval(), dsl


def read_translation_invariant(path: Path) -> tuple[dict[str, Any], PredecoderDSL]:
    """Return the content and the config of a checkpoint; ContractError if its weights belong to one circuit."""
    payload = read(path)
    dsl = _config(payload, path)
    if not dsl.translation_invariant:
        hint = "use a checkpoint of type `local`, whose weights fit every distance and number of rounds"
        raise ContractError(f"weights of type `{dsl.type}` belong to one circuit", location=str(path), hint=hint)
    return payload, dsl


def load_for_other_circuit(path: Path, problem: Problem) -> tuple[Predecoder, np.ndarray]:
    """Load the weights of a translation-invariant predecoder for another circuit of the same family.

    Returns:
        The predecoder, in eval mode, and bool [n_edges], the edges whose class was trained.

    Raises:
        ContractError: The checkpoint is malformed, its config is not translation-invariant, or the circuit has no edge
            of a trained class.
    """
    location = str(path)
    payload, dsl = read_translation_invariant(path)
    model = compile_predecoder(dsl, problem, seed=0)
    model.gate = _gate(payload, dsl, location)
    state = {name: value for name, value in payload["state_dict"].items() if name != "circuit_sha256"}
    own = model.state_dict()
    classes: Any = model.body.classes
    trained = [each for name, each in classes.items() if f"body.classes.{name}.events" in state]
    for name in own.keys() & state.keys():
        if own[name].shape != state[name].shape:
            raise _shape_error(name, own[name], state[name], location)
    if not trained:
        raise ContractError("no class of edges of this circuit was trained", location=location)
    model.load_state_dict(state, strict=False)
    known = np.zeros(len(model.prior), bool)
    known[torch.cat([each.edges for each in trained]).numpy()] = True
    return model.eval(), known


def restore(model: Predecoder, state: dict[str, torch.Tensor], *, location: str) -> None:
    """Load weights into a model; ContractError if a name or a shape differs."""
    config_state = model.state_dict()
    for name in [*config_state, *state]:
        config_value, checkpoint_value = config_state.get(name), state.get(name)
        if config_value is None or checkpoint_value is None or config_value.shape != checkpoint_value.shape:
            raise _shape_error(name, config_value, checkpoint_value, location)
    model.load_state_dict(state)


def _shape_error(name: str, own: torch.Tensor | None, stored: torch.Tensor | None, location: str) -> ContractError:
    left, right = ("absent" if value is None else str(tuple(value.shape)) for value in (stored, own))
    return ContractError(f"`{name}` is {left} in the checkpoint and {right} in the config's network", location=location)
