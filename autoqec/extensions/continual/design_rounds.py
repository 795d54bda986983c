"""Rounds for the designs that an evaluation promotes: one run per env, in the current repository."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from autoqec.contracts.profiles import ProfileName
from autoqec.contracts.run_spec import RunSpec
from autoqec.ideators import moves
from autoqec.ideators.moves import Move
from autoqec.ideators.space import Config

if TYPE_CHECKING:
    from types import TracebackType

    from autoqec.contracts.messages import IdeatorResponse
    from autoqec.orchestrator.run import Run

IDEATOR = "evaluate"  # in run.json


class WorkspaceRounds:
    """Callable that measures a config as a round of a run: (env text, profile, config) -> history row.

    A context manager. A run is started when the first design of its env and profile is promoted; UsageError if the
    current directory is not in a repository with editable modules.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note, self._held = note, ExitStack()
        self._runs: dict[tuple[str, str], Run] = {}
        self._response: IdeatorResponse | None = None  # the design that the next round measures

    def __call__(self, env_text: str, profile: ProfileName, config: Config) -> dict[str, Any]:
        """Measure and verify a design as the next round of the run of this env and profile; return its row."""
        from autoqec.orchestrator import loop

        run = self._runs.get((env_text, profile)) or self._open(env_text, profile)
        text = f"Promoted by the screening: the best {config['type']} so far"
        response = moves.to_response(Move(f"promoted-{config['type']}", text, config), source=IDEATOR)
        self._response = response
        made = len(run.memory.history.rows())
        (row,) = loop.run_rounds(run, made + 1).rows
        return row.dump()

    def _open(self, env_text: str, profile: ProfileName) -> Run:
        from autoqec.orchestrator.run import Roles, Run
        from autoqec.orchestrator.run_checks import check
        from autoqec.orchestrator.run_request import RunRequest
        from autoqec.system.git import Repo

        with tempfile.TemporaryDirectory(prefix="autoqec-env-") as folder:
            env = Path(folder) / "env.yaml"
            env.write_text(env_text, encoding="utf-8")
            spec = RunSpec(profile=profile, ideator=IDEATOR)
            request = RunRequest(Repo.discover(Path.cwd()), spec, env_path=env)
            run = Run.create(check(request, own_roles=True), Roles(lambda view: self._response))
        self._runs[env_text, profile] = self._held.enter_context(run)
        self._note(f"promoted designs become rounds of run {run.layout.run_id}")
        return run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()
