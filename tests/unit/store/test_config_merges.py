"""git merges independent edits of a dumped config, and reports conflicting ones."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from autoqec.contracts.dsl import parse_dsl
from autoqec.store.files import dump_config, load_yaml
from autoqec.system.git import MergeConflictError, Repo

BASE = parse_dsl({"type": "gnn", "gnn": {}}).config()
Key = tuple[str, ...]


def leaves(config: dict[str, Any], above: Key = ()) -> Iterator[Key]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key)


def with_value(config: dict[str, Any], key: Key, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(config)
    at = changed
    for part in key[:-1]:
        at = at[part]
    at[key[-1]] = value
    return changed


def branches_of(repo: Repo, configs: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Make one commit per config, each on top of `base`, with one git fast-import."""
    stream = b""
    for name, config in configs.items():
        data = dump_config(config).encode()
        above = b"" if name == "base" else b"from refs/heads/base\n"
        stream += b"commit refs/heads/%s\ncommitter a <a@b> 0 +0000\ndata 0\n" % name.encode()
        stream += above + b"M 100644 inline predecoder.yaml\ndata %d\n%s\n" % (len(data), data)
    subprocess.run(["git", "-C", str(repo.root), "fast-import", "--quiet"], input=stream, check=True)
    return {ref.removeprefix("refs/heads/"): sha for ref, sha in repo.refs("refs/heads").items()}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    return Repo.init(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="module")
def tips(repo: Repo) -> dict[str, str]:
    configs = {"base": BASE}
    for number, key in enumerate(leaves(BASE)):
        for rival in ("a", "b"):
            configs[f"{rival}{number}"] = with_value(BASE, key, f"changed by {rival}")
    return branches_of(repo, configs)


KEYS = list(leaves(BASE))


def merged(repo: Repo, first: str, second: str) -> Any:
    data = repo.show_file(repo.merge([first, second], "merged"), "predecoder.yaml") or b""
    return load_yaml(data.decode(), location="merged")


def neighbours(distance: int) -> list[tuple[int, int]]:
    return [(i, j) for i, j in combinations(range(len(KEYS)), 2) if j - i <= distance]


def test_edits_of_any_two_keys_are_merged(repo: Repo, tips: dict[str, str]) -> None:
    for first, second in neighbours(len(KEYS)):
        expected = with_value(with_value(BASE, KEYS[first], "changed by a"), KEYS[second], "changed by b")
        assert merged(repo, tips[f"a{first}"], tips[f"b{second}"]) == expected


@pytest.mark.parametrize("key", range(len(KEYS)), ids=lambda n: ".".join(KEYS[n]))
def test_different_edits_of_one_key_conflict(repo: Repo, tips: dict[str, str], key: int) -> None:
    with pytest.raises(MergeConflictError) as caught:
        repo.merge([tips[f"a{key}"], tips[f"b{key}"]], "merged")
    assert caught.value.files == ("predecoder.yaml",)


def test_same_edit_on_both_sides_is_not_a_conflict(repo: Repo, tips: dict[str, str]) -> None:
    assert merged(repo, tips["a0"], tips["a0"]) == with_value(BASE, KEYS[0], "changed by a")
