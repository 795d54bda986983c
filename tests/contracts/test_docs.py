"""docs/contracts says what the models say."""

from __future__ import annotations

import re

import pytest

from docs import generate, structure


def test_schemas_are_the_models() -> None:
    stored = {path.name: path.read_text(encoding="utf-8") for path in generate.SCHEMAS.glob("*.json")}
    assert stored == generate.schemas(), "run `make docs`"


@pytest.mark.parametrize("path", generate.pages(), ids=lambda path: path.name)
def test_tables_are_the_models(path) -> None:  # type: ignore[no-untyped-def]
    text = path.read_text(encoding="utf-8")
    assert text == generate.page(text), "run `make docs`"


def test_every_contract_has_its_table() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in generate.pages())
    shown = set(re.findall(r"<!-- fields: (\w+) -->", text))
    parts = {"ManifestRepo", "ManifestEnvironment", "ManifestRound", "ManifestArtifact", "Profile"}
    parts |= {"ModelOutput", "ModelConfig", "SingleProcessTraining"}
    assert set(generate.MODELS) - parts == shown


def test_links_between_pages_lead_somewhere() -> None:
    docs = generate.CONTRACTS.parent
    for page in docs.rglob("*.md"):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.relative_to(docs)} -> {link}"


def test_architecture_page_matches_the_code() -> None:
    text = structure.PAGE.read_text(encoding="utf-8")
    assert text == structure.render(text), "run `make docs`"


def test_every_module_says_what_it_provides() -> None:
    empty = [line for line in structure.table().splitlines()[2:] if line.endswith("|  |")]
    assert not empty, empty
