"""Creation of a workspace: a git repository with editable modules, one env and a .gitignore."""

from __future__ import annotations

import shutil
from pathlib import Path

import autoqec
from autoqec.cli import assistant_files
from autoqec.errors import UsageError
from autoqec.store import layout
from autoqec.store.files import load_env
from autoqec.system.git import Repo

# The files for assistants hold the path of this installation.
GITIGNORE = "/runs/\n/.worktrees/\n/.claude/\n/.mcp.json\n__pycache__/\n*.pyc\n"
README = """# AutoQEC workspace

`env.yaml` describes what is decoded; a run may edit `{modules}/`.

    autoqec run env.yaml --profile smoke --rounds 2
    autoqec show

`.claude/` (skills and agents) and `.mcp.json` (MCP server) are for coding assistants. They hold the path of the AutoQEC
installation and are not committed.
"""


def make_workspace(directory: Path, env_file: Path) -> str:
    """Create a workspace in `directory`, which must be missing or empty.

    Returns:
        Hash of its first commit.

    Raises:
        UsageError: The directory is not empty, or cannot be written.
    """
    load_env(env_file)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError("is not an empty directory", location=str(directory), hint="autoqec init NEW_DIR")
    if "\n" in str(directory.absolute()):
        message = "the path holds a line break, which is not supported"
        raise UsageError(message, location=str(directory), hint="choose another directory")
    created = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return _fill(directory, env_file)
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror}", location=str(directory), hint="choose a writable directory"
        ) from error
    except BaseException:
        _clear(directory, remove=created)
        raise


def _fill(directory: Path, env_file: Path) -> str:
    modules = Path(autoqec.__file__).parent / layout.EDITABLE_MODULES.removeprefix("autoqec/")
    shutil.copytree(modules, directory / layout.EDITABLE_MODULES, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(env_file, directory / "env.yaml")
    (directory / ".gitignore").write_text(GITIGNORE, encoding="utf-8")
    (directory / "README.md").write_text(README.format(modules=layout.EDITABLE_MODULES), encoding="utf-8")
    assistant_files.write(directory, assistant_files.render(assistant_files.installed_command()))
    return str(Repo.init(directory).commit_all("Create AutoQEC workspace"))


def _clear(directory: Path, *, remove: bool) -> None:
    for entry in directory.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    if remove:
        directory.rmdir()
