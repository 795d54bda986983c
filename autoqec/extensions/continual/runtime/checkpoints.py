"""Checkpoints of RunTime: complete directories, a `latest` link that always resolves, retention, and generators."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.continual.agents.base import Agent, MemoryAgent
from autoqec.extensions.continual.memory.modules import load_memory
from autoqec.extensions.continual.runtime.scores import EpisodeRecord
from autoqec.store import atomic


def seed_all(seed: int) -> None:
    """Seed Python's, numpy's and torch's generators; an environment may be the first that imports one of them."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def env_seed(seed: int, phase: str, number: int) -> int:
    """Return the seed of one environment's own generator.

    It depends on nothing but the arguments, so that a resumed run and parallel validation episodes draw the same.

    Args:
        seed: Of the run.
        phase: `train`, or `val` with the number of episodes seen.
        number: 0-based index of the environment.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{phase}/{number}".encode()).digest()[:8], "big")


def capture_generators() -> dict[str, Any]:
    """Return the JSON-able state of the loaded generators."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(words), gauss]}
    if "numpy" in sys.modules:
        import numpy as np

        kind, keys, position, has_gauss, cached = np.random.get_state()
        state["numpy"] = [str(kind), [int(key) for key in keys], position, has_gauss, cached]
    if "torch" in sys.modules:
        import torch

        state["torch"] = bytes(torch.get_rng_state().tolist()).hex()
    return state


def restore_generators(state: dict[str, Any]) -> None:
    """Restore each generator that `capture_generators` stored."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    if "numpy" in state:
        import numpy as np

        kind, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    if "torch" in state:
        import torch

        torch.set_rng_state(torch.tensor(list(bytes.fromhex(state["torch"])), dtype=torch.uint8))


_NAME = re.compile(r"^ep_(\d{6,})$")
_STAGING_PREFIX = ".saving-"


class RuntimeState(Contract):
    """runtime.json: the state of a run. It is written last and holds the hashes of the other files in its directory."""

    schema_version: Literal[1] = 1
    episodes_seen: int = Field(ge=0)
    next_env: int = Field(ge=0, description="0-based index of the next environment in the dataset")
    val_score: float | None = Field(description="of the last validation")
    episodes: tuple[EpisodeRecord, ...]
    errors: tuple[str, ...]
    results_dir: str = Field(description="of the run that saved it, relative to this directory")
    rng: dict[str, Any]
    sha256: dict[str, str]


@dataclass(frozen=True)
class RetentionPolicy:
    """Which checkpoints to keep.

    Attributes:
        strategy: `last_n` keeps the most recent, `top_k_val` the best validations (the more recent of equals).
        keep: How many; None or 0 keeps all.
    """

    strategy: Literal["last_n", "top_k_val"]
    keep: int | None

    def retained(self, saved: dict[int, float | None]) -> set[int]:
        """Return the episodes whose checkpoint is kept.

        Args:
            saved: Validation score per saved episode.
        """
        if not self.keep:
            return set(saved)
        if self.strategy == "last_n":
            return set(sorted(saved)[-self.keep :])
        rank = sorted(saved, key=lambda episode: (_score(saved[episode]), episode))
        return set(rank[-self.keep :])


def _score(value: float | None) -> float:
    return float("-inf") if value is None else value


class CheckpointManager:
    """Saves and prunes the checkpoints of one run under `directory`."""

    def __init__(self, directory: Path, keep: RetentionPolicy) -> None:
        self.directory, self.keep = directory, keep
        self._saved: dict[int, float | None] = {}

    def save(self, state: RuntimeState, agent: Agent[Any]) -> None:
        """Write `ep_<episode>/`, update `latest`, then prune; a crash leaves at most one checkpoint too many."""
        atomic.make_dir(self.directory)
        name = f"ep_{state.episodes_seen:06d}"
        if state.episodes_seen not in self._saved:
            self._write(self.directory / name, state, agent)
        self._saved[state.episodes_seen] = state.val_score
        retained = self.keep.retained(self._saved)
        self._update_latest(f"ep_{max(retained):06d}")
        for episode in sorted(set(self._saved) - retained):
            self._remove(f"ep_{episode:06d}")
            del self._saved[episode]
        atomic.fsync_dir(self.directory)

    def _remove(self, name: str) -> None:
        trash = self.directory / (_STAGING_PREFIX + "pruned-" + name)
        os.rename(self.directory / name, trash)  # a partly removed directory must not look like a checkpoint
        shutil.rmtree(trash)

    def _write(self, target: Path, state: RuntimeState, agent: Agent[Any]) -> None:
        staging = self.directory / (_STAGING_PREFIX + target.name)
        atomic.make_dir(staging)
        atomic.write_json(staging / "agent.json", _agent_json(agent))
        if isinstance(agent, MemoryAgent):
            agent.memory.save(staging / _memory_name(state.episodes_seen))
        hashes = {path.name: _sha256(path) for path in sorted(staging.iterdir())}
        atomic.write_json(staging / "runtime.json", state.model_copy(update={"sha256": hashes}).dump())
        os.rename(staging, target)
        atomic.fsync_dir(self.directory)

    def _update_latest(self, name: str) -> None:
        """Point `latest` (a symlink) and `latest.json` (for file systems without links) to a checkpoint."""
        atomic.write_json(self.directory / "latest.json", {"checkpoint": name})
        staging = self.directory / (_STAGING_PREFIX + "latest")
        staging.unlink(missing_ok=True)
        try:
            os.symlink(name, staging)
        except OSError:
            return
        os.replace(staging, self.directory / "latest")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is whole."""

    directory: Path
    state: RuntimeState

    @property
    def results_dir(self) -> Path:
        """Of the run that saved it."""
        return Path(os.path.normpath(self.directory / self.state.results_dir))

    def restore(self, agent: Agent[Any]) -> None:
        """Memory (with the config it was saved under) and state into an agent of the same type."""
        saved = json.loads((self.directory / "agent.json").read_text(encoding="utf-8"))
        if saved["agent_type"] != type(agent).__name__:
            raise UsageError(
                f"the checkpoint is of a {saved['agent_type']}, the config asks for a {type(agent).__name__}",
                location=str(self.directory),
                hint="use the agent type of the run that is resumed",
            )
        if isinstance(agent, MemoryAgent):
            agent.memory = load_memory(self.directory / _memory_name(self.state.episodes_seen))
        agent.load_state(saved["state"])


def load(path: Path | str) -> Checkpoint:
    """Return the checkpoint at a path; never falls back to the start of the run.

    Args:
        path: An `ep_…` directory, or `latest`.

    Raises:
        UsageError: If there is no checkpoint.
        ContractError: If a byte differs from what was saved.
    """
    directory = _resolve(Path(path))
    try:
        data = json.loads((directory / "runtime.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ContractError(f"the checkpoint is damaged: {error}", location=str(directory), hint=_MEND) from error
    state = RuntimeState.read(data, location=str(directory / "runtime.json"))
    for name, expected in state.sha256.items():
        if not (directory / name).is_file() or _sha256(directory / name) != expected:
            raise ContractError(f"{name} is not the file that was saved", location=str(directory), hint=_MEND)
    return Checkpoint(directory, state)


_MEND = "resume from another checkpoint of that run, or leave `resume_from` out"


def _resolve(path: Path) -> Path:
    if path.name == "latest" and not path.is_dir():
        pointer = path.with_name("latest.json")
        if pointer.is_file():
            path = path.with_name(str(json.loads(pointer.read_text(encoding="utf-8"))["checkpoint"]))
    path = path.resolve()
    if not path.is_dir():
        raise UsageError("there is no checkpoint", location=str(path), hint="give an ep_… directory, or `latest`")
    if not _NAME.match(path.name):
        raise UsageError("is not a checkpoint", location=str(path), hint="give an ep_… directory, or `latest`")
    return path


def _agent_json(agent: Agent[Any]) -> dict[str, Any]:
    return {"agent_type": type(agent).__name__, "config": _config(agent), "state": agent.state()}


def _config(agent: Agent[Any]) -> dict[str, Any]:
    return agent.config.model_dump(mode="json", by_alias=True)


def _memory_name(episodes: int) -> str:
    return f"memory_{episodes}.jsonl"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
