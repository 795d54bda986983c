"""Extensions: found by entry points, named when they cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from autoqec import plugins
from autoqec.errors import UsageError

GROUP: plugins.Group = "autoqec.exports"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Register two usable extensions, a broken one, and one name twice."""
    (tmp_path / "outside_broken.py").write_text("import a_package_that_is_not_installed")
    monkeypatch.syspath_prepend(str(tmp_path))
    values = [("good", "json:dumps"), ("also", "json:loads"), ("broken", "outside_broken:it")]
    values += [
        ("twice", "json:dumps"),
        ("twice", "json:loads"),
        ("listed_twice", "json:dump"),
        ("listed_twice", "json:dump"),
    ]
    entries = EntryPoints(EntryPoint(name, value, GROUP) for name, value in values)
    monkeypatch.setattr(plugins, "entry_points", lambda group: entries.select(group=group))
    plugins._registered.cache_clear()
    yield
    plugins._registered.cache_clear()


def test_names_are_listed_without_an_import() -> None:
    assert plugins.names(GROUP) == ("also", "broken", "good", "listed_twice", "twice")


def test_an_extension_is_loaded_by_its_name() -> None:
    assert plugins.load(GROUP, "good")([1]) == "[1]"


@pytest.mark.parametrize("name", ["unknown", "broken", "twice"])
def test_an_unusable_name_is_an_error_with_a_hint(name: str) -> None:
    with pytest.raises(UsageError) as error:
        plugins.load(GROUP, name)
    assert name in error.value.message and error.value.hint


def test_a_name_that_one_module_registers_twice_is_usable() -> None:
    assert plugins.load(GROUP, "listed_twice")


def test_the_unusable_ones_are_listed() -> None:
    assert [(failed.group, failed.name) for failed in plugins.unusable()] == [(GROUP, "broken"), (GROUP, "twice")]
