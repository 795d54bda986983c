"""Workflows, templates, citation and changelog: valid against their schemas and consistent with the tree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import autoqec

ROOT = Path(__file__).parents[2]
FORMS = [".github/ISSUE_TEMPLATE/bug_report.yml", ".github/ISSUE_TEMPLATE/feature_request.yml"]
SCHEMAS = {
    "github-workflows": [str(path.relative_to(ROOT)) for path in (ROOT / ".github/workflows").glob("*.yml")],
    "dependabot": [".github/dependabot.yml"],
    "github-issue-forms": FORMS,
    "github-issue-config": [".github/ISSUE_TEMPLATE/config.yml"],
    "citation-file-format": ["CITATION.cff"],
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_are_valid_against_the_published_schema(schema: str) -> None:
    assert SCHEMAS[schema]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *SCHEMAS[schema]]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_workflows_test_every_python_that_the_metadata_names() -> None:
    matrix = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["tests"]["strategy"]["matrix"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert matrix["python"] == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert set(matrix["sandbox"]) == {"bubblewrap", "landlock"}


@pytest.mark.parametrize(
    "page", [".github/workflows/ci.yml", ".devcontainer/devcontainer.json", "CONTRIBUTING.md", "docs/how-to/release.md"]
)
def test_make_targets_that_are_named_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+)(?: [a-z- ]+)?:(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", (ROOT / page).read_text(encoding="utf-8")))
    assert named and named <= targets


def test_links_resolve() -> None:
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text(encoding="utf-8")):
            assert (ROOT / link).exists(), f"{name} -> {link}"


def test_citation_has_the_version_of_the_package() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == autoqec.__version__


def test_changelog_follows_keep_a_changelog() -> None:
    """Keep a Changelog: newest section first, unreleased changes on top, entries below a kind of change."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", section) for section in sections[1:])
    kinds = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert kinds and set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
