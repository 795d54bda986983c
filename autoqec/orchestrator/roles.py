"""The ideators of the core, and the roles of an opened run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from autoqec import locate, plugins
from autoqec.contracts.events import OnEvent
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.views import IdeatorView
from autoqec.errors import UsageError
from autoqec.ideators.replay import ReplayIdeator
from autoqec.orchestrator.plugin_protocols import SEARCHES, IdeatorPlugin, RunRequest, ideator_names
from autoqec.orchestrator.run import Roles, Run
from autoqec.store.history import History
from autoqec.store.run_state import RunState


def search(name: str) -> Callable[[IdeatorView], IdeatorResponse]:
    """Return a search of the core, one of `SEARCHES`; its module is imported now."""
    propose: Callable[[IdeatorView], IdeatorResponse] = import_module(f"autoqec.ideators.{name}").propose
    return propose


def check_ideator(request: RunRequest) -> None:
    """Raise UsageError if the ideator is unknown or cannot be used, or `--replay-of` names no run to repeat."""
    spec, names = request.spec, ideator_names()
    if spec.ideator not in names:
        message, hint = f"unknown ideator {spec.ideator!r}", f"one of {', '.join(names)}"
        raise UsageError(message, location="--ideator", hint=hint)
    if (spec.ideator == "replay") != (spec.replay_of is not None):
        message = "must be given with --ideator replay, and only then"
        raise UsageError(message, location="--replay-of", hint="--replay-of RUN")
    if spec.replay_of is not None:
        _load_replay(spec.replay_of, request.root)
    elif spec.ideator not in SEARCHES:
        plugins.load("autoqec.ideators", spec.ideator)


def build_roles(run: Run, on_event: OnEvent) -> Roles:
    """Build the roles of an opened run, those of an extension included; `on_event` receives their events."""
    spec = run.info
    if spec.ideator in SEARCHES:
        return Roles(search(spec.ideator))
    if spec.replay_of is not None:
        replay = _load_replay(spec.replay_of, run.repo.root)
        return Roles(replay, stop_reason=partial(_replay_exhausted, replay))
    plugin: IdeatorPlugin = plugins.load("autoqec.ideators", spec.ideator)
    return plugin.build(run, on_event)


def _load_replay(name: str, root: Path) -> ReplayIdeator:
    """Return the ideator that repeats the proposals of an older run."""
    replay = ReplayIdeator(History(locate.run_layout(name, root=root)).rows())
    if not len(replay):
        raise UsageError("the run has no proposals", location=f"run {name}", hint="autoqec show")
    return replay


def _replay_exhausted(replay: ReplayIdeator, state: RunState) -> str | None:
    done = state.totals.finished >= len(replay)
    return f"all {len(replay)} proposals of the older run were repeated" if done else None
