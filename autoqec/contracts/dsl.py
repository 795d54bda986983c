"""PredecoderDSL: config of one predecoder, its architecture and its training; and configs as flat mappings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from autoqec.contracts.base import Contract, first_validation_error, optional, sha256_json
from autoqec.errors import ContractError


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested config as one mapping from dotted keys to values."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat.update(flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inverse of `flatten`."""
    config: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, leaf = key.split(".")
        node = config
        for part in parents:
            node = node.setdefault(part, {})
        node[leaf] = value
    return config


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key. KeyError if a part is missing."""
    value: Any = config
    for part in key.split("."):
        value = value[part]
    return value


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys whose values differ; a missing key equals None."""
    first_flat, second_flat = flatten(first), flatten(second)
    return [key for key in {**first_flat, **second_flat} if first_flat.get(key) != second_flat.get(key)]


OutputMode = Literal["soft_priors", "hard_flip"]
SnapshotMode = Literal["last", "all", "gap", "none"]
Labels = Literal["sampled", "expected"]
Family = Literal["mlp", "gnn", "neural_bp", "conv", "local"]
MAX_GATE = 30.0  # nats
FAMILIES: tuple[Family, ...] = get_args(Family)
# The field of a family's block that sets its width, and the one that sets its depth; each family has at least one.
WIDTH_FIELDS = {"mlp": "hidden", "gnn": "hidden", "conv": "channels", "local": "hidden"}
DEPTH_FIELDS = {"mlp": "depth", "gnn": "layers", "neural_bp": "iterations", "conv": "layers", "local": "depth"}


Inputs = Annotated[
    Literal["other_sector", "all"],
    Field(description="detectors the net reads: those outside the decoded sector, or all"),
]


class MlpConfig(Contract):
    """Dense net from detection events to one log-odds per variable of the backend."""

    inputs: Inputs = "other_sector"
    hidden: int = Field(default=256, ge=4, le=4096, description="width of each hidden layer")
    depth: int = Field(default=2, ge=1, le=8, description="number of hidden layers")
    activation: Literal["relu", "gelu", "silu"] = Field(default="relu", description="nonlinearity between layers")
    skip: bool = Field(default=True, description="linear path from the inputs to the outputs")


class GnnConfig(Contract):
    """Message passing on the decoding graph: detectors are nodes, edges carry the outputs."""

    inputs: Inputs = "other_sector"
    hidden: int = Field(default=24, ge=2, le=512, description="features per node")
    layers: int = Field(default=3, ge=1, le=16, description="message-passing steps")
    message_fn: Literal[
        "mlp",
        "gated_mlp",
        "attention",
        "gru_cell",
        "edge_attention",
        "geometric_attention",
        "residual_mlp",
        "normalized_mlp",
        "custom",
    ] = Field(default="mlp", description="how a message is computed from two nodes and their edge")
    aggregation: Literal["sum", "mean", "max", "attention_pool", "set_transformer", "gated_sum", "custom"] = Field(
        default="sum", description="how the messages of a node are combined"
    )
    normalization: Literal["none", "layer", "batch", "edge_norm", "graph_norm"] = Field(
        default="none", description="applied after each layer"
    )
    residual: bool = Field(default=True, description="add each layer's input to its output")
    edge_features: bool = Field(default=True, description="how strongly detector and edge are tied enters the messages")


class NeuralBpConfig(Contract):
    """Unrolled belief propagation over every mechanism, with learned weights (Nachmani 2016; Liu, Poulin 2019)."""

    inputs: Inputs = "other_sector"
    iterations: int = Field(default=5, ge=1, le=64, description="unrolled iterations")
    weight_sharing: Literal["none", "per_layer", "per_check"] = Field(
        default="per_layer", description="which messages share a learned weight"
    )
    damping: Literal["fixed", "learnable_scalar", "learnable_per_iter"] = Field(
        default="fixed", description="how old and new messages are mixed"
    )
    attention_aug: bool = Field(default=False, description="attention weights for the messages into a mechanism")
    heads: int = Field(default=1, ge=1, le=16, description="attention_aug only: attention heads, which are averaged")

    @model_validator(mode="after")
    def _heads_need_attention(self) -> NeuralBpConfig:
        if self.heads != 1 and not self.attention_aug:
            raise ValueError("`heads` belongs to `attention_aug: true`, and is 1 without it")
        return self


class ConvConfig(Contract):
    """Convolution over the space-time lattice of the detectors' coordinates; every edge reads the cells it touches."""

    inputs: Inputs = "other_sector"
    channels: int = Field(default=16, ge=1, le=256, description="features per lattice cell")
    layers: int = Field(default=3, ge=1, le=16, description="convolutions in sequence")
    kernel: Literal[3, 5] = Field(default=3, description="size of the kernel along each axis")
    residual: bool = Field(default=True, description="add each layer's input to its output")


class LocalConfig(Contract):
    """Translation-invariant net: every edge reads a window around it, with weights shared by all edges of a class.

    A class is the displacement of an edge's detectors, or the side of the boundary it leads to. A checkpoint also
    decodes other distances and numbers of rounds.
    """

    inputs: Literal["other_sector", "all", "all_in_finetuning"] = Field(
        default="other_sector",
        description="detectors the net reads: those outside the decoded sector, or all; all_in_finetuning: all, but "
        "those of the decoded sector only from fine-tuning on, because with edge labels they count evidence twice",
    )
    hidden: int = Field(default=32, ge=2, le=1024, description="width of each hidden layer")
    depth: int = Field(default=2, ge=1, le=8, description="number of hidden layers; the first belongs to the class")
    space: int = Field(default=1, ge=0, le=16, description="reach of the window along x and y, in lattice steps")
    time: int = Field(default=2, ge=0, le=16, description="reach of the window in rounds")


class SyncConfig(Contract):
    """Optimization over ranks, each with its own batches: the effective batch is `ranks` times `batch_size`."""

    ranks: int = Field(default=2, ge=1, le=64, description="processes; more than cores are allowed")
    backend: Literal["gloo", "nccl"] = Field(default="gloo", description="gloo: CPUs; nccl: one GPU per rank")


class ReplayConfig(Contract):
    """Training and sampling in separate processes that share a buffer of shots."""

    ratio: float = Field(default=1.0, gt=0, le=1024, description="shots optimized on for each shot drawn, at most")
    shots: int = Field(default=32_768, ge=64, le=2**24, description="shots kept; the oldest are overwritten")
    samplers: int = Field(default=1, ge=1, le=16, description="processes that draw, each with a copier")
    throttle: Literal["optimizer", "both"] = Field(
        default="optimizer",
        description="what is slowed down to keep the ratio: the optimizer, or both it and the samplers",
    )
    near_failure: float = Field(
        default=0.0, ge=0, le=1, description="share of a batch drawn by exp(-gap) of plain matching, not evenly"
    )


class PolicyConfig(Contract):
    """Fine-tuning of `hard_flip` by reward: success with the flips minus success without, minus their cost."""

    flip_cost: float = Field(default=1e-3, ge=0, le=1, description="of one flip, in decoded shots")
    temperature: float = Field(default=0.5, gt=0, le=10, description="exploring flips with sigmoid(z / temperature)")


# Settings of the machine and of records: they change no result, and a config leaves them out at their default.
MACHINE_FIELDS = ("device", "snapshot_mode", "snapshot_gap")
OMITTED_AT_DEFAULT = (*MACHINE_FIELDS, "labels")  # later fields: configs without them keep their hash
LOOP_BLOCKS = {"sync": "sync", "replay": "async"}  # block -> how the names of the loops that need it begin


class TrainingConfig(Contract):
    """How the weights are trained. Amounts of data belong to the profile.

    `sync` is present under the loops sync and sync_eval, `replay` under async and async_eval (which may also have
    `sync`), and `policy_gradient` if `hard_flip` is to be fine-tuned.
    """

    loop: str = Field(
        default="minibatch",
        pattern=r"^[a-z][a-z0-9_]{0,63}$",
        description="training loop: minibatch, sync, async, or one that an extension registers; "
        "`_eval` (as in sync_eval) also records validation figures while training",
    )
    init: Literal["fresh", "parent"] = Field(
        default="fresh", description="fresh weights, or those of the round it forks from"
    )
    loss: Literal["bce", "focal", "weighted_bce"] = Field(default="bce", description="loss on edge labels")
    labels: Labels = Field(
        default="sampled",
        description="labels of the training phase: sampled: the edges that the sampled errors flip; expected: their "
        "probabilities, given what these errors flip outside the decoded sector, which vary less",
    )
    learning_rate: float = Field(default=4.5e-3, gt=0, le=1, description="of AdamW in the training phase")
    batch_size: int = Field(default=512, ge=8, le=65_536, description="shots per optimizer step")
    weight_decay: float = Field(default=1e-4, ge=0, le=1, description="of AdamW in the training phase")
    finetune_learning_rate: float = Field(
        default=3e-4, gt=0, le=1, description="learning rate of the fine-tuning phase"
    )
    finetune_share: float = Field(
        default=1.0,
        ge=0,
        le=100,
        description="fine-tuning shots, in multiples of the profile's; 0 leaves the phase out",
    )
    finetune_ratio: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        description="fine-tuning shots per shot with edge labels, within the profile's sum of both; null: those of the "
        "profile",
    )
    finetune_gap: float = Field(
        default=6.0, gt=0, le=50, description="fine-tune on shots whose two logical classes differ by less, in nats"
    )
    finetune_shots: Literal["recorded", "simulated"] | None = optional(
        "shots of fine-tuning: recorded training blocks, or shots of the model; null: recorded, if any"
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:\d{1,2})?)$",
        description="where the network trains: cpu, cuda, cuda:<index>, or auto: CUDA if torch finds a GPU",
    )
    snapshot_mode: SnapshotMode = Field(
        default="last",
        description="snapshots kept in train/: last (only of a round without a checkpoint), all, gap or none",
    )
    snapshot_gap: int = Field(default=1, ge=1, le=2**31, description="gap only: keep iterations divisible by it")
    sync: SyncConfig | None = optional(
        "processes that optimize: of the loops sync and sync_eval; optional in async and async_eval"
    )
    replay: ReplayConfig | None = optional("settings of the loops async and async_eval")
    policy_gradient: PolicyConfig | None = optional("settings of fine-tuning by reward")

    @model_validator(mode="after")
    def _ratio_keeps_the_sum(self) -> TrainingConfig:
        if self.finetune_ratio is not None and self.finetune_share > 1:
            raise ValueError("beside `finetune_ratio`, `finetune_share` is at most 1: raise the ratio")
        return self

    @model_validator(mode="after")
    def _check_loop_blocks(self) -> TrainingConfig:
        for block, head in LOOP_BLOCKS.items():
            present, needed = getattr(self, block) is not None, self.loop.startswith(head)
            allowed = needed or (block == "sync" and self.loop.startswith("async"))
            if present < needed or present > allowed:
                others = "; async and async_eval may have it" if block == "sync" else ", and to no other"
                raise ValueError(
                    f"the block `{block}` belongs to the loops {head} and {head}_eval, which need it ({{}} will do)"
                    f"{others}; the loop is {self.loop}"
                )
        if self.sync is not None and self.device != "auto" and (self.sync.backend == "nccl") == (self.device == "cpu"):
            raise ValueError(
                f"device {self.device} does not fit sync.backend {self.sync.backend}: ranks of gloo are on CPUs, ranks "
                "of nccl on GPUs"
            )
        if self.replay is not None and self.batch_size > self.replay.shots:
            raise ValueError(
                f"batch_size {self.batch_size} is larger than the replay buffer: raise `replay.shots` "
                f"({self.replay.shots})"
            )
        return self


class GateShare(Contract):
    """A gate given by the share of shots that it sends to the network."""

    share: float = Field(
        gt=0,
        lt=1,
        description="share of shots, fixed by calibration on training shots; the checkpoint keeps the resulting nats",
    )


class PredecoderDSL(Contract):
    """One predecoder. Exactly the block named by `type` is present.

    soft_priors: per-shot log-odds, one a variable of the backend ([batch, n_edges] of its matching graph,
    [batch, n_faults] for belief propagation); each shot is decoded exactly under its own weights.
    hard_flip: log-odds of every mechanism, [batch, n_faults]; those above 0 are applied before the backend
    sees the cleaned syndrome, and their flips of the observables are added to its answer.
    """

    type: Family = Field(description="family of the net")
    output_mode: OutputMode = Field(
        default="soft_priors", description="log-odds per variable, or flips of error mechanisms"
    )
    mlp: MlpConfig | None = optional("settings of type mlp")
    gnn: GnnConfig | None = optional("settings of type gnn")
    neural_bp: NeuralBpConfig | None = optional("settings of type neural_bp")
    conv: ConvConfig | None = optional("settings of type conv")
    local: LocalConfig | None = optional("settings of type local")
    head: Literal["linear", "mlp_small", "custom"] = Field(
        default="linear", description="layers from features to log-odds"
    )
    gate: Annotated[float, Field(gt=0, le=MAX_GATE)] | GateShare | None = optional(
        "decode only shots whose complementary gap under plain matching is smaller, in nats, or a share of "
        "the shots; the others keep the plain prediction. Without a gate, every shot is decoded"
    )
    training: TrainingConfig = Field(default=TrainingConfig(), description="how the weights are trained")

    @model_validator(mode="after")
    def _check_family_block(self) -> PredecoderDSL:
        for name in FAMILIES:
            if (getattr(self, name) is not None) != (name == self.type):
                raise ValueError(f"type `{self.type}` needs the block `{self.type}` and no other; look at `{name}`")
        if self.type == "neural_bp" and self.head != "linear":
            raise ValueError("type `neural_bp` has no hidden features for a head: keep `head: linear`")
        finetunes = self.training.finetune_share > 0 and self.output_mode == "soft_priors"
        if self.local is not None and self.local.inputs == "all_in_finetuning" and not finetunes:
            raise ValueError(
                "`local.inputs: all_in_finetuning` needs fine-tuning through the matching: set `finetune_share` above "
                "0 and `output_mode: soft_priors`, or `inputs: other_sector`"
            )
        if self.training.policy_gradient is not None and self.output_mode != "hard_flip":
            raise ValueError("`training.policy_gradient` learns which mechanisms to flip: set `output_mode: hard_flip`")
        return self

    @property
    def block(self) -> Contract:
        """The settings of this predecoder's type."""
        block: Contract = getattr(self, self.type)
        return block

    @property
    def translation_invariant(self) -> bool:
        """Whether the weights fit other distances and numbers of rounds than those they were trained on."""
        return self.type == "local"

    def config(self) -> dict[str, Any]:
        """Return the canonical config of this value: absent blocks left out, every default written."""
        whole = self.dump()
        defaults = {name: TrainingConfig.model_fields[name].default for name in OMITTED_AT_DEFAULT}
        whole["training"] = {
            key: value
            for key, value in whole["training"].items()
            if value is not None and not (key in defaults and value == defaults[key])
        }
        return {key: value for key, value in whole.items() if value is not None}

    def training_signature(self, *, finetunes: bool = True) -> dict[str, Any]:
        """Return the settings that two configs must share to be trained alike, apart from their nets.

        Settings without an effect are left out: how a loop reports, and fine-tuning that does not run.
        `finetune_share` always counts, because a large net gives up its share of both phases.

        Args:
            finetunes: Whether the env's inner decoder supports fine-tuning.
        """
        settings = {key: value for key, value in self.training.dump().items() if key not in MACHINE_FIELDS}
        settings["loop"] = self.training.loop.removesuffix("_eval")
        through_matching = finetunes and self.output_mode == "soft_priors"
        by_reward = self.training.policy_gradient is not None
        if not (through_matching or by_reward) or self.training.finetune_share == 0:
            del settings["finetune_learning_rate"], settings["finetune_gap"], settings["finetune_shots"]
        if settings["finetune_ratio"] is None:
            del settings["finetune_ratio"]
        return {"type": self.type, "output_mode": self.output_mode, "gate": self.dump()["gate"], **settings}

    def sha256(self) -> str:
        """Return the hash of the canonical config."""
        return sha256_json(self.config())


def parse_dsl(config: Any, *, location: str = "predecoder config") -> PredecoderDSL:
    """Validate a config; ContractError names the first wrong key."""
    try:
        return PredecoderDSL.model_validate(config)
    except ValidationError as error:
        raise ContractError(first_validation_error(error), location=location) from error
