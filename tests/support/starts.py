"""Starts and resumes runs as `autoqec run` does, with roles and options of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autoqec import locate
from autoqec.contracts.events import OnEvent, ignore
from autoqec.contracts.run_spec import RunSpec
from autoqec.extensions.language_models.llm_roles import LlmRoles
from autoqec.extensions.language_models.plugin import ModelOptions
from autoqec.orchestrator.roles import search
from autoqec.orchestrator.run import CheckedRun, Roles, RolesFactory, Run
from autoqec.orchestrator.run_checks import check
from autoqec.orchestrator.run_request import RunRequest
from autoqec.store.history import History
from autoqec.system.git import Repo


def check_start(env_path: Path | str, repo: Path | str, *, on_event: OnEvent = ignore, **options: Any) -> CheckedRun:
    request = RunRequest(Repo.discover(repo), RunSpec(**options), env_path=Path(env_path))
    return check(request, on_event, own_roles=True)


def start_run(
    env_path: Path | str,
    repo: Path | str,
    profile: str = "dev",
    seed: int = 1,
    ideator: str = "tpe",
    *,
    roles: Roles | RolesFactory | None = None,
    on_event: OnEvent = ignore,
    **options: Any,
) -> Run:
    """Start a run with these fields of its specification; without `roles`, those of the named search."""
    options |= {"profile": profile, "seed": seed, "ideator": ideator}
    checked = check_start(env_path, repo, on_event=on_event, **options)
    return Run.create(checked, roles or Roles(search(ideator)), on_event=on_event)


def resume_run(
    run_id: str,
    repo: Path | str,
    *,
    roles: Roles | RolesFactory | None = None,
    on_event: OnEvent = ignore,
    withdraw_stop: bool = True,
    **changes: Any,
) -> Run:
    """Resume a run with changed fields of its specification; without `roles`, those of its search."""
    found = Repo.discover(repo)
    layout = locate.run_layout(run_id, root=Path(found.root))
    spec = History(layout).info().spec().model_copy(update=changes)
    checked = check(RunRequest(found, spec, layout=layout), on_event, own_roles=True)
    roles = roles or Roles(search(spec.ideator))
    return Run.open(checked, roles, on_event=on_event, withdraw_stop=withdraw_stop)


def model_roles(
    run: Run,
    on_event: OnEvent = ignore,
    *,
    ideator: str = "llm",
    budget: dict[str, float] | None = None,
    **options: Any,
) -> Roles:
    """Return the roles of an opened run with these options of language models."""
    spec = run.info.model_copy(update={"ideator": ideator, "budget": budget or {}})
    request = RunRequest(run.repo, spec, frozenset(options))
    run.info = spec.with_block(ModelOptions(**options).resolved(request))
    return LlmRoles(run, on_event).roles()
