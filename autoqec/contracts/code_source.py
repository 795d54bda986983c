"""What an env's `code` may be: the base of every kind, and the kinds that extensions register in `autoqec.codes`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from autoqec import plugins
from autoqec.contracts.base import Contract
from autoqec.errors import UsageError


class CodeSource(Contract):
    """One kind of code; what a kind of an extension overrides.

    The entry point of an extension names its model, whose field `kind` is a literal with the entry point's name. It has
    a field `rounds` and overrides `build`. The other methods are for a code that brings its own shots. Methods import
    what they need when they are called, because this module is imported by every command that reads an env.

    Attributes:
        own_noise: Whether the noise comes with the code; the env's noise model is then `from_file`.
        own_shots: Whether rounds are trained, validated and verified on shots that come with the code.
        backends: Inner decoders that the code allows; () for all of them.
        compared: Baselines that the verifier adds to those of the env.
        example: Name and description of a builtin env that `write_example` generates; None without one.
    """

    if TYPE_CHECKING:  # fields of each kind, in the order of its frozen text
        kind: str
        rounds: int
    own_noise: ClassVar[bool] = False
    own_shots: ClassVar[bool] = False
    backends: ClassVar[tuple[str, ...]] = ()
    compared: ClassVar[tuple[str, ...]] = ()
    example: ClassVar[tuple[str, str] | None] = None

    @property
    def predicted_by(self) -> tuple[str, ...] | None:
        """Names of the decoders whose predictions come with all shots; None if they are not known yet."""
        return ()

    def build(self, env: Any, p: float | None) -> Any:
        """Return the `stim.Circuit` of an env at an error rate; a `stim.DetectorErrorModel` if there is no circuit.

        Raises:
            UsageError: It cannot be built.
        """
        raise NotImplementedError

    def decoder_model(self, env: Any, source: Any) -> Any:
        """Return the `stim.DetectorErrorModel` whose weights the inner decoder has; None: that of the source."""
        return None

    def estimated_model(self, env: Any, source: Any) -> Any:
        """Return the `stim.DetectorErrorModel` that was estimated from the code's shots.

        Raises:
            UsageError: There is none, or it is of another circuit.
        """
        hint = "remove the baselines whose model is estimated"
        raise UsageError("has no estimated model: its shots are sampled", location=f"env `{env.name}`", hint=hint)

    def shot_source(self, problem: Any, directory: Path | None, simulated: bool) -> Any:
        """Return the code's own `runner.shot_source.ShotSource`; None if shots are sampled.

        Args:
            problem: The env's `Problem` at its target.
            directory: Directory of the shots that rounds may read.
            simulated: Train on sampled shots nevertheless.
        """
        return None

    def check_start(self, env: Any, env_dir: Path, on_event: Any) -> Any:
        """Check the code's shots before a run; return its `runner.shot_source.RunShots`, None if shots are sampled.

        Args:
            env: The env.
            env_dir: Directory of the env file.
            on_event: Receives the progress.

        Raises:
            UsageError: A file has changed, or the shots do not fit their model.
        """
        return None

    def check_moved(self, env: Any, directory: Path, location: str, on_event: Any) -> Any:
        """Check that `directory` holds the shots of a run; return its `runner.shot_source.RunShots`.

        Args:
            env: The run's env.
            directory: Directory of the files.
            location: Names the run in messages.
            on_event: Receives the progress.

        Raises:
            UsageError: The code has no shots of its own, or a file is missing or differs.
        """
        raise UsageError("the run has no recorded shots", location=location, hint="leave out --recorded")

    def check_resumed(self, env: Any, layout: Any) -> None:
        """Check that a run which is resumed still has its shots; UsageError if not."""

    def verification_session(self) -> Any:
        """Return the subclass of `verification.session.VerificationSession` for the code's shots; None: that itself."""
        return None

    @classmethod
    def write_example(cls, directory: Path) -> Path:
        """Write the builtin env `example` with its files into a directory, unless it exists; return the env file."""
        raise NotImplementedError

    @classmethod
    def env_options(cls) -> Any:
        """Return what `autoqec add-env` offers for this kind, a `cli.new_env.EnvOptions`; None for nothing."""
        return None


class FileCode(CodeSource):
    """A kind that is read from a file, whose content travels in the frozen env."""

    if TYPE_CHECKING:
        path: str
        text: str | None

    def with_content(self, content: str, directory: Path, hint: str) -> Self:
        """Return the code with the content of its file.

        Args:
            content: The text of the file `path`.
            directory: The directory that relative paths start from.
            hint: Tells the user where the path stands.

        Raises:
            UsageError: Another file that the content names cannot be read.
        """
        return self.model_copy(update={"text": content})


def extension_codes() -> tuple[type[CodeSource], ...]:
    """Return the kinds that extensions register; `autoqec doctor` names those that cannot be imported."""
    found = []
    for name in plugins.names("autoqec.codes"):
        with suppress(UsageError):
            found.append(plugins.load("autoqec.codes", name))
    return tuple(found)
