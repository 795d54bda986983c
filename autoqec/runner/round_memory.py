"""Memory that the rounds of a run need at least, estimated before anything is built or written."""

from __future__ import annotations

from dataclasses import dataclass

from autoqec.contracts.dsl import TrainingConfig
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.profiles import Profile
from autoqec.qec.problem_memory import MODEL, ModelSize
from autoqec.system.memory import GB, require_at_most, require_bytes

MIN_SHOTS_PER_PASS = 8  # of a batch through the network, see autoqec.runner.agents
SHOTS_PER_DRAW = 32_768  # shots drawn at once, fewer if their labels would exceed MAX_LABEL_BYTES
MAX_LABEL_BYTES = 2**25
FLOATS_PER_EDGE = 3  # log-odds, labels and gradients of a pass through the network
HINT = (
    "choose fewer rounds or a smaller distance; weights of type `local`, trained on few rounds, decode long "
    "experiments with `autoqec decode --window ROUNDS`"
)


@dataclass(frozen=True)
class RoundMemory:
    """Bytes by what needs them.

    Attributes:
        run: In the process of the run, for as long as it runs.
        build: In the process of the run besides, while it builds its models.
        training: In the process that trains.
    """

    run: dict[str, int]
    build: dict[str, int]
    training: dict[str, int]

    @classmethod
    def of(cls, env: EnvSpec, training: TrainingConfig, profile: Profile) -> RoundMemory:
        """Estimate the memory of a round.

        Args:
            env: The env; the run's process has its model at every p, the training's those of its circuits.
            training: The config of the training.
            profile: Sets the validation shots.

        Raises:
            UsageError: A circuit cannot be built or decoded.
        """
        points = {p: ModelSize.of_env(env, p) for p in env.points}
        circuits = [points[env.target], *(ModelSize.of_env(each, each.target) for each in env.other_members)]
        build = max(size.build_bytes - size.kept_bytes for size in circuits)
        batch = max(_batch_bytes(size, training.batch_size, profile.val_shots) for size in circuits)
        kept = sum(size.kept_bytes for size in circuits)
        run = {f"{MODEL} at every p": sum(size.kept_bytes for size in (*points.values(), *circuits[1:]))}
        train = {f"{MODEL} in training": kept + max(0, build - batch), "training batches": batch}
        return cls(run, {"building them": build}, train)

    def require(self, location: str, profile: Profile, *, trained_here: bool = True) -> None:
        """Check that the memory suffices; that of training only against the profile if jobs of a cluster train.

        Args:
            location: What needs the memory.
            profile: Limits the memory of a round.
            trained_here: Whether rounds are trained in the memory of this process.

        Raises:
            UsageError: This machine or the profile's limit has less.
        """
        limit = f"that profile `{profile.name}` allows a round"
        require_at_most(self.training, profile.memory_gb * GB, limit, location, HINT)
        require_bytes(self.run | (self.training if trained_here else self.build), location, HINT)


def _batch_bytes(size: ModelSize, batch_size: int, val_shots: int) -> int:
    """Return the memory of labelled and validation shots, and of a pass through the network of the smallest size."""
    shots = max(batch_size, min(SHOTS_PER_DRAW, MAX_LABEL_BYTES // max(size.n_edges, 1)))
    labelled = shots * (size.n_detectors + size.n_edges + size.n_errors // 8)
    network = 4 * MIN_SHOTS_PER_PASS * (size.n_detectors + FLOATS_PER_EDGE * size.n_edges)
    return labelled + network + val_shots * size.n_detectors // 8
