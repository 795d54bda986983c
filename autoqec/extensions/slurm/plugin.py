"""SLURM as an executor of `autoqec run`: its options, and what it does with a run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from autoqec.contracts.run_spec import Option, PluginOptions, RunSpec
from autoqec.errors import AutoqecError, UsageError
from autoqec.orchestrator.plugin_protocols import ExecutorPlugin, Launch, Waiting, ideator_plugins
from autoqec.orchestrator.run_request import RunRequest

if TYPE_CHECKING:
    from autoqec.contracts.events import OnEvent
    from autoqec.contracts.job import JobOrder
    from autoqec.extensions.slurm.container import Image
    from autoqec.orchestrator.executors import Executor, RoundFuture
    from autoqec.orchestrator.run import Run
    from autoqec.store.layout import RunLayout

NAME = "slurm"


class SlurmOptions(PluginOptions):
    """Options of the jobs in which rounds, and a detached run, execute."""

    block: ClassVar[str] = NAME

    slurm: Annotated[tuple[str, ...], Option("KEY=VALUE")] = Field(
        default=(), description="Option of the SLURM jobs: time, cpus, mem, partition, … Repeatable."
    )
    detach: Annotated[bool, Option(negatable=True)] = Field(
        default=False,
        description="Run the search in a SLURM job too, so that no process stays here; needs --executor slurm.",
    )
    detach_slurm: Annotated[tuple[str, ...], Option("KEY=VALUE")] = Field(
        default=(),
        description="Option of the job of --detach; default: time=60, cpus=1, mem=4G, and partition, account and qos "
        "of --slurm.",
    )
    container: Annotated[str | None, Option("IMAGE", path=True)] = Field(
        default=None,
        description="Apptainer image in which the SLURM jobs run; the manifests of rounds record its digest.",
    )


class SlurmPlugin(ExecutorPlugin):
    """Measures rounds in jobs of SLURM."""

    Options: ClassVar[type[SlurmOptions]] = SlurmOptions

    def health(self) -> Iterator[tuple[str, str | None]]:
        """Say whether the controller accepts jobs; a machine without SLURM is in order."""
        if shutil.which("sbatch") is None:
            yield "not installed; rounds run on this machine", None
            return
        from autoqec.extensions.slurm import submission

        try:
            submission.check({})
        except AutoqecError as error:
            yield f"--executor slurm cannot be used: {error.message}", error.hint or "sinfo"
        else:
            yield "the controller accepts jobs: --executor slurm", None

    def check(self, request: RunRequest) -> SlurmOptions:
        """Refuse options without `--executor slurm`, and jobs that SLURM would not accept."""
        options, is_chosen = SlurmOptions.of(request.spec), request.spec.executor == NAME
        if not is_chosen:
            for name in ("slurm", "container", "detach"):
                if name in request.given and getattr(options, name):
                    hint = "add --executor slurm" + (", or use nohup" if name == "detach" else "")
                    raise UsageError("needs --executor slurm", location=f"--{name}", hint=hint)
        if not (is_chosen and options.detach):
            if "detach_slurm" in request.given and options.detach_slurm:
                raise UsageError("needs --detach", location="--detach-slurm", hint="add --detach")
            options = options.model_copy(update={"detach_slurm": ()})
        if not is_chosen:
            return SlurmOptions()
        from autoqec.extensions.slurm import detached, submission

        accepted_at_start = request.layout is not None and detached.is_own_job(request.layout.run_id)
        of_jobs = [_of_rounds(request.spec, options)] + ([_of_detached(options)] if options.detach else [])
        for job_options in of_jobs if not accepted_at_start else ():
            submission.check(job_options)
        if options.detach and not accepted_at_start:
            _exported(request.spec, options)
        _image(request, options)
        return options

    def plan(self, request: RunRequest) -> Iterator[str]:
        """Describe the jobs of rounds, and of a detached run."""
        for name, text in (("slurm", "one per round"), ("detached", "this job runs the search")):
            job_options = self.plan_values(request)[name]
            if job_options is not None:
                shown = ", ".join(f"{key}={value}" for key, value in job_options.items())
                yield f"{name.replace('slurm', 'job'):<9} {shown}; {text}"

    def plan_values(self, request: RunRequest) -> dict[str, Any]:
        """Return the options of the jobs, and the digest of the image."""
        options, is_chosen = SlurmOptions.of(request.spec), request.spec.executor == NAME
        image = _image(request, options)
        return {
            "slurm": _of_rounds(request.spec, options) if is_chosen else None,
            "detached": _of_detached(options) if options.detach else None,
            "container": None if image is None else image.sha256,
        }

    def open(self, run: Run, waiting: Waiting) -> Executor:
        """Return the executor, which leaves jobs of a detached run to the next process when it is asked to end."""
        from autoqec.extensions.slurm import detached
        from autoqec.extensions.slurm.container import open_image
        from autoqec.extensions.slurm.executor import SlurmExecutor

        options = SlurmOptions.of(run.info)
        image = None if options.container is None else open_image(run.layout.repo_root / options.container)
        leave = waiting.interrupted if detached.is_own_job(run.info.run_id) else None
        return SlurmExecutor(run.info.parallel, _of_rounds(run.info, options), image=image, leave=leave)

    def attach(self, run: Run, executor: Executor, order: JobOrder, on_event: OnEvent) -> RoundFuture:
        """Return the measurement that an earlier process submitted."""
        from autoqec.extensions.slurm.executor import SlurmExecutor

        cluster = executor if isinstance(executor, SlurmExecutor) else SlurmExecutor()
        return cluster.attach(order, on_event)

    def carry_out(self, launch: Launch) -> int | None:
        """Start or resume a detached run in a job, or be that job."""
        from autoqec import locate
        from autoqec.extensions.slurm import detached

        if detached.is_own_job(launch.resume):
            return detached.continue_run(locate.run_layout(str(launch.resume)), launch.run)
        spec = launch.check().spec
        options = SlurmOptions.of(spec)
        if not options.detach:
            return None
        exported = _exported(spec, options)
        with launch.open() as run:
            layout = run.layout
        job_id = detached.start(layout, _of_detached(options), exported)
        launch.say(f"Run {layout.run_id} is detached: SLURM job {job_id} runs it.")
        launch.say(f"Watch: autoqec watch {layout.run_id}")
        launch.say(f"Stop:  autoqec stop {layout.run_id}")
        event = {"event": "run_detached", "run_id": layout.run_id, "job": job_id, "log": str(layout.detached_logs)}
        launch.emit(event)
        return 0

    def require_here(self, spec: RunSpec) -> None:
        """Refuse to detach a run elsewhere than on the command line."""
        if SlurmOptions.of(spec).detach:
            hint = "detach=False runs it in this process; `autoqec run … --detach` detaches it"
            raise UsageError("is an option of the command line", location="detach", hint=hint)

    def require_free(self, layout: RunLayout) -> None:
        """Raise UsageError if a job executes the run, or will, and this process is not that job."""
        from autoqec.extensions.slurm import detached

        detached.require_free(layout)

    def stop(self, layout: RunLayout) -> str | None:
        """Ask a detached run to end; return when it does, None if it is not detached."""
        from autoqec.extensions.slurm import detached

        return detached.stop(layout)

    def describe(self, layout: RunLayout) -> str | None:
        """Return one line about the job of a detached run; None for any other run."""
        from autoqec.extensions.slurm import detached

        return detached.describe(layout)

    def is_abandoned(self, layout: RunLayout) -> bool:
        """Return whether a detached run that is neither finished nor stopped has no job any more."""
        from autoqec.extensions.slurm import detached

        return detached.is_abandoned(layout)


def _of_rounds(spec: RunSpec, options: SlurmOptions) -> dict[str, str]:
    from autoqec.extensions.slurm import submission
    from autoqec.extensions.slurm.executor import fill_job_options

    return fill_job_options(submission.parse_options(options.slurm), spec.scaled_profile(), spec.threads)


def _of_detached(options: SlurmOptions) -> dict[str, str]:
    from autoqec.extensions.slurm import detached, submission

    of_rounds = submission.parse_options(options.slurm)
    inherited = {key: of_rounds[key] for key in detached.INHERITED if key in of_rounds}
    return {**detached.DEFAULTS, **inherited, **submission.parse_options(options.detach_slurm, "--detach-slurm")}


def _exported(spec: RunSpec, options: SlurmOptions) -> list[str]:
    """Return the variables that the job of a detached run needs, beside those of every job."""
    from autoqec.extensions.slurm.commands import has_only_this_machine

    same_machine = has_only_this_machine(_of_detached(options).get("partition"))
    return [name for each in ideator_plugins() for name in each.variables_elsewhere(spec, same_machine=same_machine)]


def _image(request: RunRequest, options: SlurmOptions) -> Image | None:
    from autoqec.extensions.slurm.container import open_image

    return None if options.container is None else open_image(request.root / options.container)


plugin = SlurmPlugin()
