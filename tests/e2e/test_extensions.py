"""The core works without its extensions, and an outside distribution extends it without a change here."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

import autoqec

PACKAGE = Path(autoqec.__file__).parent
EXTENSIONS = sorted(path.parent.name for path in (PACKAGE / "extensions").glob("*/__init__.py"))
SMOKE_RUN = ("run", "env.yaml", "--profile", "smoke", "--rounds", "1", "--json")


class Installation:
    """A virtual environment with a copy of the package; all other files are links to those of the tests."""

    def __init__(self, directory: Path, without: tuple[str, ...] = ()) -> None:
        self.directory, venv = directory, directory / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        (self.site,) = venv.glob("lib/python*/site-packages")
        required = shutil.ignore_patterns("__pycache__", "*autoqec*")
        shutil.copytree(
            sysconfig.get_path("purelib"), self.site, ignore=required, copy_function=link, dirs_exist_ok=True
        )
        package = self.site / "autoqec"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "models"))
        for name in without:
            shutil.rmtree(package / "extensions" / name)
        text = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
        self.python = venv / "bin" / "python"
        self.register("autoqec", declared_entry_points(text, without))

    def register(self, distribution: str, entry_points: dict[str, dict[str, str]]) -> None:
        """Write the metadata of a distribution as an installer does."""
        directory = self.site / f"{distribution}-0.1.0.dist-info"
        directory.mkdir()
        (directory / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1.0\n")
        parser = configparser.ConfigParser(delimiters=("=",))
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_dict(entry_points)
        with (directory / "entry_points.txt").open("w", encoding="utf-8") as file:
            parser.write(file)

    def autoqec(self, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        home = self.directory / "home"
        home.mkdir(exist_ok=True)
        kept = {name: os.environ[name] for name in ("PATH", "AUTOQEC_SANDBOX") if name in os.environ}
        env = {**kept, "HOME": str(home), "OMP_NUM_THREADS": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
        command = [self.python, "-P", "-m", "autoqec.cli", *argv]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False)

    def workspace(self) -> Path:
        done = self.autoqec("init", "workspace", cwd=self.directory)
        assert done.returncode == 0, done.stderr
        return self.directory / "workspace"


def link(source: str, target: str) -> None:
    """Link a file; copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def declared_entry_points(pyproject: str, without: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Return the entry points of this distribution except those of some extensions."""
    import tomllib

    prefixes = tuple(f"autoqec.extensions.{name}." for name in without)
    groups = tomllib.loads(pyproject)["project"]["entry-points"]
    return {
        group: {name: value for name, value in entries.items() if not f"{value}.".startswith(prefixes)}
        if prefixes
        else entries
        for group, entries in groups.items()
    }


ALL_AT_ONCE = pytest.param(tuple(EXTENSIONS), id="all")
ONE_AFTER_THE_OTHER = [pytest.param((name,), id=name, marks=pytest.mark.long) for name in EXTENSIONS]


@pytest.mark.parametrize("without", [ALL_AT_ONCE, *ONE_AFTER_THE_OTHER])
def test_a_run_needs_no_extension(tmp_path: Path, without: tuple[str, ...]) -> None:
    installation = Installation(tmp_path, without)
    workspace = installation.workspace()
    done = installation.autoqec(*SMOKE_RUN, cwd=workspace)
    assert done.returncode == 0, done.stderr
    (history,) = workspace.glob("runs/*/history.jsonl")
    assert json.loads(history.read_text(encoding="utf-8").splitlines()[0])["status"] == "ok"
    assert installation.autoqec("show", "--json", cwd=workspace).returncode == 0
    doctor = installation.autoqec("doctor", "--json", cwd=workspace)
    states = {row["name"]: row["state"] for row in map(json.loads, doctor.stdout.splitlines())}
    assert states["extensions"] == "ok"


OUTSIDE = '''
"""A small outside package: a command and an ideator."""

import click

from autoqec.contracts.messages import IdeatorResponse
from autoqec.ideators import random
from autoqec.orchestrator.plugin_protocols import IdeatorPlugin
from autoqec.orchestrator.run import Roles


@click.command("greet")
def greet():
    """Say hello."""
    click.echo("hello from outside")


class Outside(IdeatorPlugin):
    def build(self, run, on_event):
        return Roles(random.propose)


ideator = Outside()
'''


def test_an_outside_package_adds_a_command_and_an_ideator(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    (installation.site / "outside.py").write_text(textwrap.dedent(OUTSIDE), encoding="utf-8")
    groups = {"autoqec.commands": "greet", "autoqec.ideators": "ideator"}
    entries = {group: {"greet" if name == "greet" else "outside": f"outside:{name}"} for group, name in groups.items()}
    installation.register("outside", entries)
    workspace = installation.workspace()
    assert "hello from outside" in installation.autoqec("greet", cwd=workspace).stdout
    assert "greet" in installation.autoqec("--help", cwd=workspace).stdout
    done = installation.autoqec(*SMOKE_RUN, "--ideator", "outside", cwd=workspace)
    assert done.returncode == 0, done.stderr
    (info,) = workspace.glob("runs/*/run.json")
    assert json.loads(info.read_text(encoding="utf-8"))["ideator"] == "outside"
