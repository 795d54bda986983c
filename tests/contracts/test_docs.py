"""Generated pages and tables of docs/contracts equal the models."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import autoqec.api
from autoqec.extensions.language_models.clients.prices import price_list
from docs import generate


def test_schemas_equal_the_models() -> None:
    stored = {path.name: path.read_text(encoding="utf-8") for path in generate.SCHEMAS.glob("*.json")}
    assert stored == generate.schemas(), "run `make docs`"


@pytest.mark.parametrize("path", generate.pages(), ids=lambda path: path.name)
def test_tables_equal_the_models(path) -> None:  # type: ignore[no-untyped-def]
    text = path.read_text(encoding="utf-8")
    assert text == generate.page(text), "run `make docs`"


def test_every_contract_has_its_table() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in generate.pages())
    documented = set(re.findall(r"<!-- fields: (\w+) -->", text))
    parts = {"ManifestRepo", "ManifestEnvironment", "ManifestRound", "ManifestArtifact", "Profile"}
    parts |= {"ModelOutput", "ModelConfig", "SingleProcessTraining", "RunConfig", "Timing"}
    assert set(generate.MODELS) - parts == documented


def test_links_between_pages_resolve() -> None:
    docs = generate.CONTRACTS.parent
    for page in docs.rglob("*.md"):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.relative_to(docs)} -> {link}"


ROOT = generate.CONTRACTS.parents[1]


def test_decision_records_are_numbered_and_listed() -> None:
    folder = generate.CONTRACTS.parent / "adr"
    pages = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [int(name[:4]) for name in pages] == list(range(1, len(pages) + 1))
    assert re.findall(r"\]\((.+?)\)", (folder / "README.md").read_text(encoding="utf-8"))[-len(pages) :] == pages
    for name in pages:
        text = (folder / name).read_text(encoding="utf-8")
        assert text.startswith(f"# {int(name[:4])}. ") and re.findall(r"\*\*(\w+)\.\*\*", text) == [
            "Context", "Decision", "Consequences",
        ]  # fmt: skip


@pytest.mark.long
def test_site_builds_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    reference = (tmp_path / "reference/api/index.html").read_text(encoding="utf-8")
    assert all(f'id="autoqec.api.{name}"' in reference for name in autoqec.api.__all__)


def test_models_named_in_examples_have_a_price() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "cli" / "assistant").rglob("*.md")]
    named = {
        name
        for page in pages
        for name in re.findall(r"--model[ =]((?:claude|gpt|gemini)-\w[\w.-]*\w)", page.read_text("utf-8"))
    }
    assert named and named <= set(price_list().models)
