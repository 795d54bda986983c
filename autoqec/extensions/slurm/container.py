"""Container images of jobs: an Apptainer (Singularity) image file, its digest, and the command that runs inside it."""

from __future__ import annotations

import hashlib
import shlex
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autoqec.errors import UsageError

PROGRAMS = ("apptainer", "singularity")
_HINT = "apptainer build autoqec.sif containers/autoqec.def"


@dataclass(frozen=True)
class Image:
    """An image file as it was when it was opened.

    Attributes:
        path: Absolute path, which the nodes share.
        sha256: Hash of the file.
        program: Path of the program that runs it.
        stamp: Size and time of the file; another one means that the digest no longer holds.
    """

    path: Path
    sha256: str
    program: str
    stamp: tuple[int, int]

    def require_unchanged(self) -> None:
        """Raise UsageError if the file changed since it was opened, so that jobs would run another image."""
        if _stamp(self.path) != self.stamp:
            message = "the image changed while the run used it"
            raise UsageError(message, location=str(self.path), hint="--resume records the new digest")

    def python(self, directories: Iterable[Path], *, gpu: bool) -> str:
        """Return the shell command of the image's Python.

        Args:
            directories: Bound at the same path, as is the temporary directory of the job.
            gpu: Make NVIDIA's driver available.
        """
        binds = [flag for directory in dict.fromkeys(map(str, directories)) for flag in ("--bind", directory)]
        words = [self.program, "exec", *(["--nv"] if gpu else []), *binds]
        return f'{shlex.join(words)} --bind "$TMPDIR" {shlex.quote(str(self.path))} python3 -P -s'


def open_image(path: Path) -> Image:
    """Hash an image file.

    Raises:
        UsageError: The file is missing or cannot be read, or the program that runs it is missing.
    """
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        message = f"neither {' nor '.join(f'`{name}`' for name in PROGRAMS)} is on the PATH"
        raise UsageError(message, location="--container", hint="load the module of your cluster, or omit --container")
    place = path.resolve()
    if not place.is_file():
        raise UsageError(f"the image {path} cannot be read: it is not a file", location="--container", hint=_HINT)
    try:
        stamp = _stamp(place)
        digest = _digest(place, stamp)
    except OSError as error:
        message = f"the image {path} cannot be read: {error.strerror}"
        raise UsageError(message, location="--container", hint=_HINT) from error
    return Image(place, digest, program, stamp)


@cache
def _digest(place: Path, stamp: tuple[int, int]) -> str:
    """Hash a file of some gigabytes once, as long as its stamp is the same."""
    with place.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return (-1, -1)
    return found.st_size, found.st_mtime_ns
