"""Skills, agents and AGENTS.md: only published fields, and only commands and options that exist."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from autoqec.cli.assistant_files import CHECKOUT_COMMAND, CHECKOUT_ONLY, installed_command, render
from autoqec.cli.autoqec import group

NAMES = group.list_commands(click.Context(group))

ROOT = Path(__file__).parents[2]
SKILLS = sorted((ROOT / ".claude" / "skills").glob("*/SKILL.md"))
AGENTS = sorted((ROOT / ".claude" / "agents").glob("*.md"))
WANTED = {"autoqec-run", "review-log", "verify-decoder", "diagnose-failure", "add-env", "review-framework"}
# The fields that Claude Code publishes; it ignores unknown ones silently, so that they are checked here.
SKILL_FIELDS = {
    "name", "description", "when_to_use", "argument-hint", "allowed-tools", "disallowed-tools", "model", "effort",
    "disable-model-invocation", "user-invocable", "context", "agent", "paths", "hooks", "license", "compatibility",
    "metadata",
}  # fmt: skip
AGENT_FIELDS = {
    "name", "description", "tools", "disallowedTools", "model", "effort", "permissionMode", "maxTurns", "mcpServers",
    "skills", "isolation",
}  # fmt: skip
TOOLS = {"Read", "Write", "Edit", "Grep", "Glob", "Bash"}
DOCUMENTS = [*SKILLS, *AGENTS, ROOT / "AGENTS.md"]


def name_of(path: Path) -> str:
    return path.parent.name if path.name == "SKILL.md" else path.stem


def parts(path: Path) -> tuple[dict[str, Any], str]:
    """Return frontmatter and body."""
    match = re.fullmatch(r"---\n(.*?)\n---\n(.*)", path.read_text(encoding="utf-8"), re.DOTALL)
    assert match, f"{path} has no frontmatter"
    return yaml.safe_load(match[1]), match[2]


def commands(path: Path) -> list[str]:
    """Return every `autoqec …` command of a document, from code blocks and inline code."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"^[ ]*```\w*\n(.*?)^[ ]*```", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip().partition("  #")[0] for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`((?:\.venv/bin/)?autoqec [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [line.removeprefix(".venv/bin/") for line in (*lines, *inline) if re.match(r"(\.venv/bin/)?autoqec ", line)]


def test_expected_skills_exist() -> None:
    assert {name_of(path) for path in SKILLS} == WANTED and AGENTS


@pytest.mark.parametrize("path", SKILLS, ids=name_of)
def test_skill_has_published_fields_only(path: Path) -> None:
    fields, body = parts(path)
    assert set(fields) <= SKILL_FIELDS
    assert fields["name"] == path.parent.name and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert 40 <= len(fields["description"]) <= 1024 and body.strip()
    assert fields.get("context") in (None, "fork")


@pytest.mark.parametrize("path", AGENTS, ids=name_of)
def test_agent_has_documented_fields_and_reads_only(path: Path) -> None:
    fields, body = parts(path)
    assert set(fields) <= AGENT_FIELDS and {"name", "description", "tools"} <= set(fields)
    assert fields["name"] == path.stem and body.strip()
    assert not {"Write", "Edit", "Bash"} & set(re.split(r",\s*", fields["tools"]))
    for skill in fields.get("skills", ()):
        assert (ROOT / ".claude" / "skills" / skill / "SKILL.md").is_file()


@pytest.mark.parametrize("path", [*SKILLS, *AGENTS], ids=name_of)
def test_named_tools_exist(path: Path) -> None:
    fields, _ = parts(path)
    named = fields.get("tools") or fields.get("allowed-tools") or ""
    for tool in re.findall(r"[A-Za-z_]+(?:\([^)]*\))?", named):
        if tool.startswith("mcp__autoqec__"):
            assert tool.removeprefix("mcp__autoqec__") in served()
            continue
        kind, _, rule = tool.partition("(")
        assert kind in TOOLS, tool
        words = rule.rstrip(")").split()
        if words and words[0].endswith("autoqec"):
            assert words[0] == CHECKOUT_COMMAND[0] and words[1] in NAMES, tool


def served() -> set[str]:
    pytest.importorskip("mcp", reason="mcp is not installed; install: pip install mcp")
    from mcp import Client

    from autoqec.extensions.language_models.mcp_server import server

    async def listed() -> set[str]:
        async with Client(server(ROOT)) as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    return asyncio.run(listed())


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_command_and_option_in_a_recipe_exists(path: Path) -> None:
    for line in commands(path):
        words = shlex.split(line)[1:]
        if words == ["--help"]:
            continue
        assert words[0] in NAMES, line
        command = group.get_command(click.Context(group), words[0])
        assert command is not None
        known = {option for parameter in command.get_params(click.Context(command)) for option in parameter.opts}
        for word in words[1:]:
            assert not word.startswith("-") or word.partition("=")[0] in known, line


def test_skill_is_allowed_to_run_its_commands() -> None:
    for path in SKILLS:
        fields, _ = parts(path)
        allowed = set(re.findall(r"Bash\(\.venv/bin/(autoqec [a-z-]+)", fields["allowed-tools"]))
        used = {" ".join(line.split()[:2]) for line in commands(path)}
        assert used <= allowed, (path, used - allowed)


def test_only_the_user_can_start_a_run() -> None:
    fields, _ = parts(ROOT / ".claude/skills/autoqec-run/SKILL.md")
    assert fields["disable-model-invocation"] is True


def test_claude_md_refers_to_agents_md() -> None:
    assert (ROOT / "CLAUDE.md").read_text(encoding="utf-8").strip() == "@AGENTS.md"
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (ROOT / target).exists(), target
    assert set(re.findall(r"`/([a-z-]+)`", text)) == WANTED


def test_files_of_the_checkout_are_rendered_from_the_package() -> None:
    """`python -m docs.generate` writes them."""
    for name, text in render(CHECKOUT_COMMAND, checkout=True).items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, name


def test_workspace_files_use_the_installed_command_only() -> None:
    files = render(installed_command())
    assert {name_of(Path(name)) for name in files if name.endswith(".md")} == {
        name_of(path) for path in (*SKILLS, *AGENTS)
    } - CHECKOUT_ONLY
    for name, text in files.items():
        calls = text.replace(shlex.join(installed_command()), "").replace("mcp__autoqec", "")
        assert "{{" not in text and not re.search(r"(?<![/.\w])autoqec [a-z]", calls), name
        assert "docs/" not in text and "make " not in text, name


def test_installed_command_works_without_path(tmp_path: Path) -> None:
    ended = subprocess.run([*installed_command(), "--version"], cwd=tmp_path, env={}, capture_output=True, text=True)
    assert ended.stdout.startswith("autoqec "), ended.stderr


def test_mcp_file_of_the_checkout_starts_the_server() -> None:
    pytest.importorskip("mcp", reason="mcp is not installed; install: pip install mcp")
    from mcp import Client, StdioServerParameters

    server = json.loads((ROOT / ".mcp.json").read_text(encoding="utf-8"))["mcpServers"]["autoqec"]
    if not (ROOT / server["command"]).exists():
        pytest.skip(f"{server['command']} does not exist; run: make install")
    environment = {name: value for name, value in os.environ.items() if name in ("HOME", "LD_LIBRARY_PATH")}
    command = StdioServerParameters(command=server["command"], args=server["args"], cwd=ROOT, env=environment)

    async def list_tools() -> set[str]:
        async with Client(command) as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    assert "propose" in asyncio.run(asyncio.wait_for(list_tools(), 120))
    used = {name for path in AGENTS for name in parts(path)[0].get("mcpServers", ())}
    assert used == {"autoqec"}
