"""Images of jobs: the digest is that of the file, and what is missing is refused before anything is submitted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from autoqec.contracts.base import sha256_bytes
from autoqec.errors import UsageError
from autoqec.extensions.slurm.container import open_image


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    path = tmp_path / "an image.sif"
    path.write_bytes(b"an image")
    return path


def test_digest_is_that_of_the_file(image: Path) -> None:
    opened = open_image(image)
    assert opened.sha256 == sha256_bytes(b"an image") and opened.program == f"{image.parent}/bin/apptainer"
    opened.require_unchanged()


def test_command_binds_the_workspace_and_quotes_names(image: Path, tmp_path: Path) -> None:
    opened = open_image(image)
    place = tmp_path / "work space"
    assert opened.python([place, place], gpu=True) == (
        f"{opened.program} exec --nv --bind '{place}' --bind \"$TMPDIR\" '{image}' python3 -P -s"
    )
    assert "--nv" not in opened.python([place], gpu=False)


@pytest.mark.parametrize("flaw", ["missing", "a directory", "no program"])
def test_missing_image_or_program_is_refused(image: Path, flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = image
    if flaw == "missing":
        path = image.with_name("other.sif")
    elif flaw == "a directory":
        path = image.parent
    else:
        monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError) as found:
        open_image(path)
    assert found.value.location == "--container" and found.value.hint


def test_changed_image_is_refused(image: Path) -> None:
    opened = open_image(image)
    image.write_bytes(b"another image")
    with pytest.raises(UsageError, match="changed while the run used it"):
        opened.require_unchanged()
    image.unlink()
    with pytest.raises(UsageError, match="changed"):
        opened.require_unchanged()


def test_recipes_install_the_wheel_with_its_extras(tmp_path: Path) -> None:
    """The commands of both recipes, without the packages of Debian, with a pip that prints its arguments."""
    root = Path(__file__).parents[4]
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    assert "\nslurm = [" in project and "\nreport = [" in project and ":: 3.12" in project
    tools, wheels = tmp_path / "bin", tmp_path / "wheels"
    tools.mkdir()
    (tools / "pip").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    (tools / "pip").chmod(0o755)
    for name, place in (("Dockerfile", "RUN "), ("autoqec.def", "    ")):
        text = (root / "containers" / name).read_text(encoding="utf-8")
        assert "python:3.12-slim" in text and "install -y --no-install-recommends git bubblewrap" in text
        wheels.mkdir()
        (wheels / "autoqec-1.2-cp311-abi3-linux_x86_64.whl").touch()
        (line,) = (line for line in text.splitlines() if line.startswith(f"{place}pip install"))
        command = line.removeprefix(place).replace("{{ PIP_ARGS }}", "${PIP_ARGS}").replace("/opt/autoqec", str(wheels))
        env = {"PATH": f"{tools}:{os.environ['PATH']}", "PIP_ARGS": "--extra-index-url https://x"}
        done = subprocess.run(["sh", "-ec", command], env=env, capture_output=True, text=True, check=True)
        wheel = f"{wheels}/autoqec-1.2-cp311-abi3-linux_x86_64.whl[slurm,report]"
        assert done.stdout == f"install|--no-cache-dir|--extra-index-url|https://x|{wheel}|" and not wheels.exists()
