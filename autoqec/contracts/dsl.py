"""PredecoderDSL: one architecture and its training, as a config. Every knob changes what is computed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from autoqec.contracts.base import Contract, first_fault, sha256_json
from autoqec.errors import ContractError

OutputMode = Literal["soft_priors", "hard_flip"]


class MlpConfig(Contract):
    """Dense net from detection events to one log-odds per variable of the backend."""

    inputs: Literal["other_sector", "all"] = "other_sector"
    hidden: int = Field(default=256, ge=4, le=4096)
    depth: int = Field(default=2, ge=1, le=8)
    activation: Literal["relu", "gelu", "silu"] = "relu"
    skip: bool = Field(default=True, description="linear path from the inputs to the outputs")


class GnnConfig(Contract):
    """Message passing on the matching graph: detectors are nodes, edges carry the outputs."""

    inputs: Literal["other_sector", "all"] = "other_sector"
    hidden: int = Field(default=24, ge=2, le=512)
    layers: int = Field(default=3, ge=1, le=16)
    message_fn: Literal["mlp", "gated_mlp"] = "mlp"
    aggregation: Literal["sum", "mean", "max"] = "sum"
    normalization: Literal["none", "layer"] = "none"
    residual: bool = True
    edge_features: bool = Field(default=True, description="prior log-odds and boundary flag enter the messages")


class TrainingConfig(Contract):
    """How the weights are found. Amounts of data are the profile's."""

    loop: Literal["minibatch", "minibatch_eval"] = "minibatch"
    init: Literal["fresh", "parent"] = "fresh"
    loss: Literal["bce", "focal", "weighted_bce"] = "bce"
    learning_rate: float = Field(default=3e-3, gt=0, le=1)
    batch_size: int = Field(default=512, ge=8, le=65_536)
    weight_decay: float = Field(default=1e-4, ge=0, le=1)
    finetune_learning_rate: float = Field(default=3e-4, gt=0, le=1)
    finetune_share: float = Field(
        default=1.0, ge=0, le=1, description="share of the profile's fine-tuning shots that is used; 0 leaves it out"
    )
    finetune_gap: float = Field(
        default=6.0, gt=0, le=50, description="fine-tune on shots whose two logical classes differ by less, in nats"
    )


class PredecoderDSL(Contract):
    """One predecoder. Exactly the block named by `type` is present.

    soft_priors: per-shot log-odds, one a variable of the backend ([batch, n_edges] of its matching graph,
    [batch, n_faults] for belief propagation); each shot is decoded exactly under its own weights.
    hard_flip: log-odds of every mechanism, [batch, n_faults]; those above 0 are applied before the backend
    sees the cleaned syndrome, and their flips of the observables are added to its answer.
    """

    type: Literal["mlp", "gnn"]
    output_mode: OutputMode = "soft_priors"
    mlp: MlpConfig | None = None
    gnn: GnnConfig | None = None
    head: Literal["linear", "mlp_small"] = "linear"
    training: TrainingConfig = TrainingConfig()

    @model_validator(mode="after")
    def _one_block(self) -> PredecoderDSL:
        for name in FAMILIES:
            if (getattr(self, name) is not None) != (name == self.type):
                raise ValueError(f"type `{self.type}` needs the block `{self.type}` and no other; look at `{name}`")
        return self

    @property
    def block(self) -> Contract:
        block: Contract = getattr(self, self.type)
        return block

    def config(self) -> dict[str, Any]:
        """The config that stands for this value: absent families left out, every default written."""
        return {key: value for key, value in self.dump().items() if value is not None}

    def sha256(self) -> str:
        """One hash per config, defaults included."""
        return sha256_json(self.config())


FAMILIES = ("mlp", "gnn")


def parse_dsl(config: Any, *, where: str = "predecoder config") -> PredecoderDSL:
    """Validate a config; ContractError names the first wrong key."""
    try:
        return PredecoderDSL.model_validate(config)
    except ValidationError as error:
        raise ContractError(first_fault(error), where=where) from error
