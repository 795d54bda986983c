"""Skills, agents and MCP configuration for coding assistants, for one installation of `autoqec`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).parent / "assistant"
PLACEHOLDER = "{{autoqec}}"
CHECKOUT_ONLY = {"review-framework", "reviewer"}  # for AutoQEC's own code
CHECKOUT_COMMAND = (".venv/bin/autoqec",)  # where `make install` puts it


def render(command: Sequence[str], *, checkout: bool = False) -> dict[str, str]:
    """Return the files that make `command` known to an assistant.

    Args:
        command: How `autoqec` is called from the root of the repository.
        checkout: Whether to include the files that are of use for AutoQEC's own code only.

    Returns:
        Contents by path relative to the root of the repository.
    """
    found = {}
    for kind, target in (("skills", ".claude/skills/{}/SKILL.md"), ("agents", ".claude/agents/{}.md")):
        for path in sorted((SOURCE / kind).glob("*.md")):
            if checkout or path.stem not in CHECKOUT_ONLY:
                text = path.read_text(encoding="utf-8")
                found[target.format(path.stem)] = text.replace(PLACEHOLDER, shlex.join(command))
    server = {"command": command[0], "args": [*command[1:], "mcp", "--quiet"]}
    found[".mcp.json"] = json.dumps({"mcpServers": {"autoqec": server}}, indent=2) + "\n"
    return found


def installed_command() -> list[str]:
    """Return how to call this installation of `autoqec` from any directory, whatever is on PATH."""
    script = Path(sys.executable).with_name("autoqec")
    return [str(script)] if script.is_file() else [sys.executable, "-P", "-m", "autoqec.cli"]


def write(directory: Path, files: dict[str, str]) -> None:
    """Write rendered files below `directory`."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
