"""What an extension provides that adds an ideator (group `autoqec.ideators`) or an executor (`autoqec.executors`).

The entry point names an instance. One instance may stand under several names of a group, e.g. `llm` and `hybrid`; it
is then asked once, and `spec.ideator` says under which name it was chosen. `autoqec run --help` imports the module of
every plugin, so that it imports nothing heavy at its top: neither torch, stim nor the client of a service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from autoqec import plugins
from autoqec.contracts.run_spec import PluginOptions, RunSpec
from autoqec.errors import UsageError
from autoqec.orchestrator.run_request import RunRequest as RunRequest

if TYPE_CHECKING:
    from autoqec.contracts.events import OnEvent
    from autoqec.contracts.job import JobOrder
    from autoqec.orchestrator.executors import Executor, RoundFuture
    from autoqec.orchestrator.run import Roles, Run
    from autoqec.store.layout import RunLayout


class RunPlugin:
    """What ideators and executors have in common: options, their check, and their lines in `--dry-run`."""

    Options: ClassVar[type[PluginOptions]] = PluginOptions

    def check(self, request: RunRequest) -> PluginOptions:
        """Check the options before a run exists or is resumed, once per process; write nothing.

        Every installed plugin is asked, chosen or not, so that options which do not apply are refused.

        Args:
            request: The run. `self.Options.of(request.spec)` are the options as stored and given.

        Returns:
            The options as run.json stores them.

        Raises:
            UsageError: An option is invalid, or contradicts another.
        """
        return self.Options.of(request.spec)

    def plan(self, request: RunRequest) -> Iterator[str]:
        """Yield the lines of `--dry-run` about these options, each `name      text`."""
        yield from ()

    def health(self) -> Iterator[tuple[str, str | None]]:
        """Yield findings for `autoqec doctor` about what the plugin needs: (finding, hint if something is missing)."""
        yield from ()

    def plan_values(self, request: RunRequest) -> dict[str, Any]:
        """Return the keys that `--dry-run --json` has beside those of the core."""
        return {}


@dataclass(frozen=True)
class Comment:
    """A recommendation of a language model about findings: what matters, what to change, and the rounds it rests on."""

    what: str
    change: str
    rounds: tuple[int, ...]


class FindingsReader(Protocol):
    """Comments on findings with a language model."""

    def __call__(self, findings: Sequence[dict[str, Any]], topic: str) -> tuple[list[Comment] | None, float | None]:
        """Return the comments, None without a usable answer, and the cost in dollars, None if it is unknown.

        Raises:
            AutoqecError: The model cannot be called.
        """
        ...


class IdeatorPlugin(RunPlugin):
    """An ideator, and the other roles that go with it."""

    def build(self, run: Run, on_event: OnEvent) -> Roles:
        """Build the roles of an opened run, which this process holds.

        Args:
            run: The run, still without roles. `run.info` is its specification; `run.clock` counts for `hours`.
            on_event: Receives the events of the roles.
        """
        raise NotImplementedError

    def finish(self, run: Run) -> str | None:
        """Called for every installed plugin after the last round; return a note for the user."""
        return None

    def reader(self, model: str) -> FindingsReader | None:
        """Return what comments on findings with this model; None if the plugin asks no models.

        Raises:
            UsageError: The model or its credentials are unknown.
        """
        return None

    def variables_elsewhere(self, spec: RunSpec, *, same_machine: bool) -> Iterable[str]:
        """Return the environment variables that a process which continues the run in a job needs.

        Args:
            spec: The run.
            same_machine: Whether jobs run on this machine only.

        Raises:
            UsageError: The roles cannot be built there, e.g. because an endpoint is an address of this machine.
        """
        return ()


@dataclass(frozen=True)
class Waiting:
    """What an executor asks while rounds wait or are measured.

    Attributes:
        stop_reason: Why a round that waits for a free slot is not to be measured any more; None: it is.
        interrupted: Whether the user, or a signal, asked this process to end.
    """

    stop_reason: Callable[[], str | None]
    interrupted: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Ended:
    """How the rounds of one process ended: the loop's reason, whether it was interrupted, and the exit status."""

    stop_reason: str
    interrupted: bool
    exit_status: int


@dataclass(frozen=True)
class Launch:
    """One call of `autoqec run`, which an executor may carry out otherwise than in this process.

    Attributes:
        resume: Id or path of the run to resume, as the user gave it; None: a new run.
        check: Resolves and checks options and env; a second call returns the same result.
        open: Starts or resumes the run without running rounds; this process holds it in the context.
        run: Runs the rounds in this process and prints their progress. Its argument: since when the run executes, if
            this process continues it; None: the user started it.
        say: Prints a line of the result.
        emit: Prints an object with `--json`.
    """

    resume: str | None
    check: Callable[[], RunRequest]
    open: Callable[[], AbstractContextManager[Run]]
    run: Callable[[datetime | None], Ended]
    say: Callable[[str], None]
    emit: Callable[[dict[str, Any]], None]


class ExecutorPlugin(RunPlugin):
    """A way to measure rounds elsewhere than in children of the process that runs them."""

    def open(self, run: Run, waiting: Waiting) -> Executor:
        """Return the executor of an opened run, whose options are in `run.info`."""
        raise NotImplementedError

    def attach(self, run: Run, executor: Executor, order: JobOrder, on_event: OnEvent) -> RoundFuture:
        """Return the measurement that an earlier process submitted.

        Args:
            run: The run.
            executor: The executor of the run, of this plugin or of another one.
            order: What was submitted.
            on_event: Receives the progress of the round.
        """
        raise NotImplementedError

    def carry_out(self, launch: Launch) -> int | None:
        """Carry out `autoqec run` otherwise; every installed executor is asked.

        Returns:
            The exit status; None: this process runs the rounds in the usual way.
        """
        return None

    def require_here(self, spec: RunSpec) -> None:
        """Raise UsageError if `carry_out` leaves the rounds of a run to jobs, which a Python program cannot do."""

    def require_free(self, layout: RunLayout) -> None:
        """Raise UsageError if a job runs the rounds of this run, or will; asked before every resume."""

    def repair(self, layout: RunLayout) -> str | None:
        """Repair what this executor left in the run, once this process holds it; return a note for the user."""
        return None

    def stop(self, layout: RunLayout) -> str | None:
        """Ask jobs that run the rounds of this run to end; return when they do, None if there are none."""
        return None

    def describe(self, layout: RunLayout) -> str | None:
        """Return one line about the jobs that run the rounds of this run, and what to do; None without any."""
        return None

    def is_abandoned(self, layout: RunLayout) -> bool:
        """Return whether jobs were to run the rounds of this run, and there are none any more."""
        return False


SEARCHES = ("tpe", "random", "evolve")  # ideators of the core: modules of `autoqec.ideators`


def ideator_names() -> tuple[str, ...]:
    """Return the names of all ideators: those of the core, then those of extensions."""
    return (*SEARCHES, "replay", *plugins.names("autoqec.ideators"))


def executor_names() -> tuple[str, ...]:
    """Return the names of all executors: that of the core, then those of extensions."""
    return ("local", *plugins.names("autoqec.executors"))


def ideator_plugins() -> list[IdeatorPlugin]:
    """Return the installed plugins that add ideators, each once, without those that cannot be imported."""
    return _installed("autoqec.ideators")


def executor_plugins() -> list[ExecutorPlugin]:
    """Return the installed plugins that add executors, each once, without those that cannot be imported."""
    return _installed("autoqec.executors")


def run_plugins() -> list[RunPlugin]:
    """Return all plugins that may add options to `autoqec run`."""
    return [*ideator_plugins(), *executor_plugins()]


@cache
def _installed(group: plugins.Group) -> list[Any]:
    found = {}
    for name in plugins.names(group):
        with suppress(UsageError):  # named by `autoqec doctor`, and when the plugin itself is chosen
            plugin = plugins.load(group, name)
            found[id(plugin)] = plugin
    return list(found.values())
