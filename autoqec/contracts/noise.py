"""Noise models of an env: strength and form of the errors that its circuit has."""

# ruff: noqa: N815 - the names of NVIDIA's JSON files
from __future__ import annotations

import math
import sys
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from autoqec.contracts.base import Contract

MIN_P = 1e-9
MIN_STRENGTH = sys.float_info.min  # below, doubles lose digits, and ratios to other rates may be infinite
MAX_POINTS = 64  # physical error rates in one env; each has a circuit and a graph of its own


class CircuitDepolarizing(Contract):
    """All four noise parameters of stim's generator equal p. p lies in (0, 1/2)."""

    model: Literal["circuit_depolarizing"] = Field(
        default="circuit_depolarizing", description="selects this noise model"
    )
    p: tuple[float, ...] = Field(
        min_length=1, max_length=MAX_POINTS, description="physical error rates that the env covers, each in [1e-9, 1/2)"
    )
    target_p: float = Field(description="the rate at which decoders are compared; must be in `p`")

    @field_validator("p")
    @classmethod
    def _in_range(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        for value in values:
            if not 0.0 < value < 0.5:
                raise ValueError(f"p = {value} lies outside (0, 1/2)")
            if value < MIN_P:
                raise ValueError(f"p = {value} is below {MIN_P}: no number of shots would show a logical error")
        if len(set(values)) != len(values):
            raise ValueError("a value of p is given twice")
        return values

    @model_validator(mode="after")
    def _target_listed(self) -> CircuitDepolarizing:
        if self.target_p not in self.p:
            raise ValueError(f"target_p = {self.target_p} is not in the list p = {list(self.p)}")
        return self


class BiasedNoise(CircuitDepolarizing):
    """As circuit_depolarizing, but every depolarizing channel of strength p favours phase flips by eta.

    One qubit: Z with p*eta/(eta+1), X and Y share the rest. Two qubits: IZ, ZI, ZZ share p*eta/(eta+1), the other
    twelve Paulis the rest. eta = 1/2 is depolarizing on one qubit, eta = 1/4 on two.
    """

    model: Literal["circuit_biased"] = Field(default="circuit_biased", description="selects this noise model")  # type: ignore[assignment]
    eta: float = Field(gt=0, le=1e6, description="ratio of phase flips to bit flips")


class Si1000Noise(CircuitDepolarizing):
    """SI1000 of superconducting qubits with strength p (Gidney et al., Quantum 5, 605, 2021); gates are CZ.

    CZ gates: p. Single-qubit gates and idling: p/10. Resets: 2p. Measurements: 5p. Idling while others are reset or
    measured: 2p.
    """

    model: Literal["si1000"] = Field(default="si1000", description="selects this noise model")  # type: ignore[assignment]


class ChannelNoise(CircuitDepolarizing):
    """Each of the four noise channels of stim's generator has a strength of its own: p times its factor."""

    model: Literal["circuit_channels"] = Field(default="circuit_channels", description="selects this noise model")  # type: ignore[assignment]
    gate: float = Field(default=1.0, ge=0, description="factor of the depolarizing noise after Clifford gates")
    measurement: float = Field(default=1.0, ge=0, description="factor of the flips before measurements")
    reset: float = Field(default=1.0, ge=0, description="factor of the flips after resets")
    data: float = Field(
        default=1.0, ge=0, description="factor of the depolarizing noise on data qubits before each round"
    )

    @property
    def factors(self) -> tuple[float, float, float, float]:
        """Factors of gate, measurement, reset and data."""
        return self.gate, self.measurement, self.reset, self.data

    @model_validator(mode="after")
    def _strengths_are_probabilities(self) -> ChannelNoise:
        if not any(self.factors):
            raise ValueError(
                "one of gate, measurement, reset and data must be above 0: the circuit would have no noise"
            )
        if (largest := max(self.factors) * max(self.p)) >= 0.5 or not math.isfinite(largest):
            raise ValueError(f"the largest factor times the largest p is {largest:g}, outside (0, 1/2)")
        return self


class PhenomenologicalNoise(CircuitDepolarizing):
    """DEPOLARIZE1(p) on data qubits before each round, and flips of the checks' measurements with p.

    Gates and resets are perfect, and so is the final measurement of the data qubits.
    """

    model: Literal["phenomenological"] = Field(default="phenomenological", description="selects this noise model")  # type: ignore[assignment]


class CodeCapacityNoise(CircuitDepolarizing):
    """DEPOLARIZE1(p) on data qubits once, with perfect checks; `rounds` is 1."""

    model: Literal["code_capacity"] = Field(default="code_capacity", description="selects this noise model")  # type: ignore[assignment]


class Nvidia25Parameters(Contract):
    """The 25 parameters of the circuit-level noise model of NVIDIA's Ising-Decoding, with the names of its JSON files.

    https://github.com/NVIDIA/Ising-Decoding
    """

    p_prep_X: float = Field(ge=0, le=1, description="Z flip after the preparation of |+>")
    p_prep_Z: float = Field(ge=0, le=1, description="X flip after the preparation of |0>")
    p_meas_X: float = Field(ge=0, le=1, description="Z flip before a measurement in the X basis")
    p_meas_Z: float = Field(ge=0, le=1, description="X flip before a measurement in the Z basis")
    p_idle_cnot_X: float = Field(ge=0, le=1, description="X on a qubit that idles in a layer of CNOTs")
    p_idle_cnot_Y: float = Field(ge=0, le=1, description="Y on a qubit that idles in a layer of CNOTs")
    p_idle_cnot_Z: float = Field(ge=0, le=1, description="Z on a qubit that idles in a layer of CNOTs")
    p_idle_spam_X: float = Field(ge=0, le=1, description="X on a data qubit while ancillas are prepared")
    p_idle_spam_Y: float = Field(ge=0, le=1, description="Y on a data qubit while ancillas are prepared")
    p_idle_spam_Z: float = Field(ge=0, le=1, description="Z on a data qubit while ancillas are prepared")
    p_cnot_IX: float = Field(ge=0, le=1, description="I on the control and X on the target of a CNOT")
    p_cnot_IY: float = Field(ge=0, le=1, description="I on the control and Y on the target of a CNOT")
    p_cnot_IZ: float = Field(ge=0, le=1, description="I on the control and Z on the target of a CNOT")
    p_cnot_XI: float = Field(ge=0, le=1, description="X on the control and I on the target of a CNOT")
    p_cnot_XX: float = Field(ge=0, le=1, description="X on the control and X on the target of a CNOT")
    p_cnot_XY: float = Field(ge=0, le=1, description="X on the control and Y on the target of a CNOT")
    p_cnot_XZ: float = Field(ge=0, le=1, description="X on the control and Z on the target of a CNOT")
    p_cnot_YI: float = Field(ge=0, le=1, description="Y on the control and I on the target of a CNOT")
    p_cnot_YX: float = Field(ge=0, le=1, description="Y on the control and X on the target of a CNOT")
    p_cnot_YY: float = Field(ge=0, le=1, description="Y on the control and Y on the target of a CNOT")
    p_cnot_YZ: float = Field(ge=0, le=1, description="Y on the control and Z on the target of a CNOT")
    p_cnot_ZI: float = Field(ge=0, le=1, description="Z on the control and I on the target of a CNOT")
    p_cnot_ZX: float = Field(ge=0, le=1, description="Z on the control and X on the target of a CNOT")
    p_cnot_ZY: float = Field(ge=0, le=1, description="Z on the control and Y on the target of a CNOT")
    p_cnot_ZZ: float = Field(ge=0, le=1, description="Z on the control and Z on the target of a CNOT")

    @property
    def strength(self) -> float:
        """The largest total of a group of errors: preparation, measurement, both kinds of idling, CNOT."""
        values: dict[str, float] = dict(self)
        groups = ("p_prep_", "p_meas_", "p_idle_cnot_", "p_idle_spam_", "p_cnot_")
        return max(math.fsum(value for name, value in values.items() if name.startswith(group)) for group in groups)

    def check_strength(self) -> None:
        """Raise ValueError if the strength is no probability in (0, 1/2) that can be scaled to others."""
        if not 0 < self.strength < 0.5:
            raise ValueError(f"the largest total of a group of errors is {self.strength:g}, outside (0, 1/2)")
        if self.strength < MIN_STRENGTH:
            raise ValueError(
                f"the largest total of a group of errors is {self.strength:g}, too small to be scaled to p (least: "
                f"{MIN_STRENGTH:.2g}); multiply all 25 parameters by the same factor, since only their ratios matter"
            )

    def scaled(self, factor: float) -> Nvidia25Parameters:
        """Return all parameters times a factor."""
        values: dict[str, float] = dict(self)
        return Nvidia25Parameters(**{name: factor * value for name, value in values.items()})


class Nvidia25Noise(CircuitDepolarizing):
    """The 25-parameter noise model of NVIDIA's Ising-Decoding, for surface codes.

    p is the largest total of a group of errors, as in Ising-Decoding: the parameters are scaled to it, so that only
    their ratios matter. Hadamard gates count as part of preparations and measurements in the X basis.
    """

    model: Literal["nvidia_25"] = Field(default="nvidia_25", description="selects this noise model")  # type: ignore[assignment]
    parameters: Nvidia25Parameters = Field(description="the 25 parameters, as in a JSON file of Ising-Decoding")

    @field_validator("parameters")
    @classmethod
    def _has_noise(cls, parameters: Nvidia25Parameters) -> Nvidia25Parameters:
        parameters.check_strength()
        return parameters

    def at(self, p: float) -> Nvidia25Parameters:
        """Return the parameters at strength p."""
        strength = self.parameters.strength
        return self.parameters if p == strength else self.parameters.scaled(p / strength)


class FileNoise(Contract):
    """Noise written in the code's own file: one operating point, no p."""

    model: Literal["from_file"] = Field(default="from_file", description="selects this noise model")


Noise = Annotated[
    CircuitDepolarizing
    | BiasedNoise
    | Si1000Noise
    | ChannelNoise
    | PhenomenologicalNoise
    | CodeCapacityNoise
    | Nvidia25Noise
    | FileNoise,
    Field(discriminator="model"),
]
