"""Options of a run, resolved from the command line or the Python API and from the run that is resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoqec import locate
from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.history import RunInfo
from autoqec.contracts.pins import apply_pins, family_pins, format_pins
from autoqec.contracts.profiles import GROWING, Profile, ProfileName, default_scale, profile_of
from autoqec.contracts.settings import RunSettings
from autoqec.errors import UsageError
from autoqec.extensions.language_models import model_access
from autoqec.extensions.slurm import detached
from autoqec.extensions.slurm import submission as slurm
from autoqec.extensions.slurm.container import Image, open_image
from autoqec.extensions.slurm.executor import SlurmExecutor, fill_job_options
from autoqec.launch import role_options, settings
from autoqec.orchestrator import loop
from autoqec.qec.problem_memory import ModelSize
from autoqec.runner.devices import require_available
from autoqec.store.files import load_env
from autoqec.store.history import History
from autoqec.store.layout import RunLayout


@dataclass(frozen=True)
class RunOptions:
    """A run to start, or to resume.

    Attributes:
        root: Directory of the repository that the command was started in; its top, or another one.
        env: Env file of a new run; None when a run is resumed.
        layout: Layout of the run to resume; None for a new run.
        info: run.json of the run to resume.
        scale: Factor on the profile's training and verification.
        n_edges: Edges of the matching graph that set the scale; None if they did not.
        choice: Ideator and language models.
        pins: Config options that every proposal keeps.
        settings: Settings that a resume inherits.
        cluster: SLURM options of the job of a round; None if rounds are measured on this machine.
        image: Container image in which jobs run; None: without a container.
        orchestrator: SLURM options of the jobs in which a detached run executes; None: it executes in this process.
        recorded: Directory of the recorded shots of the run to resume, if it has moved.
    """

    root: Path
    env: Path | None
    layout: RunLayout | None
    info: RunInfo | None
    profile: ProfileName
    scale: float
    n_edges: int | None
    seed: int
    secret_file: Path | None
    choice: role_options.RoleOptions
    pins: dict[str, Any]
    settings: RunSettings
    cluster: dict[str, str] | None
    image: Image | None
    orchestrator: dict[str, str] | None
    recorded: Path | None

    @property
    def rounds(self) -> int | None:
        """Finished rounds at which the run ends; None: other limits end it."""
        return self.settings.rounds

    @property
    def budget(self) -> loop.Budget:
        """Limits of the loop."""
        return settings.loop_budget(self.settings)

    @property
    def parallel(self) -> int:
        """Rounds measured at once."""
        return self.settings.parallel

    @property
    def round_threads(self) -> int:
        """Threads of one round: a share of `threads` if several rounds run on this machine."""
        threads = self.settings.threads
        return threads if self.cluster is not None else max(1, threads // self.parallel)

    def executor(self, leave: Callable[[], bool] | None = None) -> loop.Executor | None:
        """Return the executor of rounds; None: this machine. For the arguments see `SlurmExecutor`."""
        if self.cluster is None:
            return None
        return SlurmExecutor(self.parallel, self.cluster, image=self.image, leave=leave)


OPTION_DEFAULTS: Mapping[str, Any] = {
    "rounds": None, "profile": "dev", "scale": None, "seed": 1, "secret_file": None, "resume": None, "ideator": "tpe",
    "pin": (),
    "no_llm": False, "model": None, "effort": None, "price": None, "cassette": None, "replay_of": None,
    "ideator_memory": None,
    "analyst_memory": None, "memory": None, "open_modules": False, "parallel": 1, "threads": 1, "executor": "local",
    "slurm": (), "container": None, "detach": False, "detach_slurm": (), "budget": "",
    "recorded": None,
}  # fmt: skip
_PATH_OPTIONS = ("secret_file", "cassette", "ideator_memory", "analyst_memory", "memory", "container", "recorded")


def complete_options(named: Mapping[str, Any], *, resume: str | None = None) -> dict[str, Any]:
    """Add the defaults to the options that a caller of the Python API gave.

    Raises:
        UsageError: An option is unknown, or the profile is.
    """
    unknown = [name for name in named if name not in OPTION_DEFAULTS or name == "resume"]
    if unknown:
        raise UsageError("is not an option", location=unknown[0], hint=f"choose from {', '.join(OPTION_DEFAULTS)}")
    paths = {name: Path(named[name]) for name in _PATH_OPTIONS if named.get(name) is not None}
    chosen = {**OPTION_DEFAULTS, **named, **paths, "resume": resume}
    profile_of(chosen["profile"], 1.0 if chosen["scale"] is None else chosen["scale"])
    return chosen


def parse_run_options(env_name: str | None, explicit: set[str], **chosen: Any) -> RunOptions:
    """Resolve and check the options of a run; writes nothing.

    Args:
        env_name: Builtin env name or env file; None when a run is resumed.
        explicit: Names of the options that the user gave.
        chosen: Value of every option of `autoqec run`.

    Raises:
        UsageError: An option is invalid, or contradicts the run that is resumed.
    """
    root = locate.workspace_root()
    if role_options.split_budget(chosen["budget"])[0].rounds is not None and chosen["rounds"] is not None:
        raise UsageError("cannot be combined with --budget rounds=…", location="--rounds", hint="remove one of them")
    pins = role_options.parse_pins(chosen["pin"])
    layout = locate.run_layout(chosen["resume"], root=root) if chosen["resume"] else None
    info = History(layout).info() if layout else None
    if info is not None:
        _check_resume_options(info, env_name, {name: chosen[name] for name in explicit}, pins)
    elif chosen["recorded"] is not None:
        raise UsageError("needs --resume", location="--recorded", hint="the manifest of an env names the directory")
    elif env_name is None:
        raise UsageError("is missing", location="ENV", hint="autoqec envs; then autoqec run NAME")
    resolved = settings.resolve_settings(info, explicit, chosen, root)
    ideator = info.ideator if info else chosen["ideator"]
    choice = settings.role_options(resolved, ideator, info, layout, explicit, chosen, root)
    if chosen["no_llm"] and choice.models:
        raise UsageError(f"ideator {choice.ideator} calls a language model", location="--no-llm", hint="--ideator tpe")
    role_options.check_role_options(choice, root)
    resolved = settings.with_models(resolved, choice)
    if "open_modules" in explicit and chosen["open_modules"] and "coder" not in choice.models:
        message = f"ideator `{choice.ideator}` proposes configs only, so no code is edited"
        raise UsageError(message, location="--open-modules", hint="--ideator llm")
    if info is None:
        env = load_env(locate.env_file(str(env_name)))[0]
        pins = family_pins(pins, 1 + len(env.other_members))
        profile = chosen["profile"]
        scale, n_edges = _default_scale(env, profile) if chosen["scale"] is None else (chosen["scale"], None)
    else:
        pins, profile, scale, n_edges = dict(info.pins), info.profile, info.scale, None
    if resolved.executor == "local":
        _check_gpus(pins)
    # The jobs of a detached run were accepted at its start.
    check = layout is None or not detached.is_own_job(layout.run_id)
    return RunOptions(
        root=Path.cwd(),  # not the top: a start in a linked worktree is noted
        env=None if info else locate.env_file(str(env_name)),
        layout=layout,
        info=info,
        profile=profile,
        scale=scale,
        n_edges=n_edges,
        seed=info.seed if info else chosen["seed"],
        secret_file=chosen["secret_file"],
        choice=choice,
        pins=pins,
        settings=resolved,
        cluster=_slurm_options(resolved, profile_of(profile, scale), check=check),
        image=_image(resolved, root),
        orchestrator=_orchestrator_options(resolved, check=check),
        recorded=chosen["recorded"],
    )


def _default_scale(env: EnvSpec, profile: ProfileName) -> tuple[float, int | None]:
    """Return the scale of a run for which none is chosen, and the edges that set it.

    They are those of the env's largest circuit. Recorded shots are as many as they are, so their amount does not grow;
    other inner decoders have no matching graph.
    """
    if profile not in GROWING or env.backend != "mwpm" or env.code.own_shots:
        return 1.0, None
    n_edges = max(ModelSize.of_env(each, each.target).n_edges for each in (env, *env.other_members))
    scale = default_scale(profile, n_edges)
    return scale, n_edges if scale != 1 else None


def _check_gpus(pins: dict[str, Any]) -> None:
    """Refuse pins that require GPUs which this machine does not have; every round would fail."""
    if pins:
        require_available(parse_dsl(apply_pins({"type": "mlp", "mlp": {}}, pins)).training)


def _slurm_options(resolved: RunSettings, profile: Profile, *, check: bool) -> dict[str, str] | None:
    """SLURM options of the job of a round, accepted by `sbatch --test-only`; None for the local executor."""
    if resolved.executor == "local":
        if resolved.slurm:
            raise UsageError("needs --executor slurm", location="--slurm", hint="add --executor slurm")
        return None
    job_options = fill_job_options(slurm.parse_options(resolved.slurm), profile, resolved.threads)
    if check:
        slurm.check(job_options)
    return job_options


def _orchestrator_options(resolved: RunSettings, *, check: bool) -> dict[str, str] | None:
    """SLURM options of the jobs of a detached run, accepted by `sbatch --test-only`; None for any other run."""
    if not resolved.detach:
        if resolved.detach_slurm:
            raise UsageError("needs --detach", location="--detach-slurm", hint="add --detach")
        return None
    if resolved.executor == "local":
        raise UsageError("needs --executor slurm", location="--detach", hint="add --executor slurm, or use nohup")
    of_rounds = slurm.parse_options(resolved.slurm)
    inherited = {key: of_rounds[key] for key in detached.INHERITED if key in of_rounds}
    job_options = {**detached.DEFAULTS, **inherited, **slurm.parse_options(resolved.detach_slurm, "--detach-slurm")}
    if check:
        slurm.check(job_options)
        model_access.require_reachable(resolved, job_options)
    return job_options


def _image(resolved: RunSettings, root: Path) -> Image | None:
    if resolved.container is None:
        return None
    if resolved.executor == "local":
        raise UsageError("needs --executor slurm", location="--container", hint="add --executor slurm")
    return open_image(root / resolved.container)


def _check_resume_options(info: RunInfo, env_name: str | None, named: dict[str, Any], pins: dict[str, Any]) -> None:
    """Reject options that contradict those with which the run was started."""
    hint = f"autoqec run --resume {info.run_id}"
    for name in ("profile", "scale", "seed", "ideator"):
        was = getattr(info, name)
        if named.get(name, was) != was:
            raise UsageError(f"the run was started with {was}", location=f"--{name} {named[name]}", hint=hint)
    if pins and pins != info.pins:
        raise UsageError(
            f"the run was started with {format_pins(info.pins) or 'no pins'}",
            location=f"--pin {format_pins(pins)}",
            hint=hint,
        )
    if "secret_file" in named:
        raise UsageError("the run already has a secret", location="--secret-file", hint=hint)
    if env_name is not None:
        path = locate.env_file(env_name)
        if sha256_bytes(load_env(path)[1].encode()) != info.env_yaml_sha256:
            raise UsageError("is not the env that the run was started with", location=str(path), hint=hint)
