"""Writes each language-model call to a file of its own under `llm_calls/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoqec.store import atomic


@dataclass
class EpisodeCallLog:
    """Writes the calls of one episode; the caller advances `step`.

    Attributes:
        folder: `llm_calls/train` or `llm_calls/validation/val_<N>`.
        context: Fields written into each file.
        step: 1-based step of the episode.
    """

    folder: Path
    context: dict[str, Any]
    step: int = 1
    _calls: int = 0

    def __call__(self, record: dict[str, Any]) -> None:
        """Write one call to its file."""
        self._calls += 1
        directory = self.folder / record["kind"]
        atomic.make_dir(directory)
        name = f"{self.context['episode_index']:06d}_{self.step:03d}_{self._calls:03d}.json"
        context = {**self.context, "step_index": self.step, "kind": record["kind"]}
        body = {key: value for key, value in record.items() if key != "kind"}
        atomic.write_json(directory / name, {"context": context, **body})
