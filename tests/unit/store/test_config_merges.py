"""Real git joins independent edits of a dumped config, and refuses rival ones."""

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
    """One commit a config, each on top of `base`; by one git fast-import."""
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
    return Repo.init(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="module")
def tips(repo: Repo) -> dict[str, str]:
    configs = {"base": BASE}
    for number, key in enumerate(leaves(BASE)):
        for rival in ("a", "b"):
            configs[f"{rival}{number}"] = with_value(BASE, key, f"changed by {rival}")
    return branches_of(repo, configs)


KEYS = list(leaves(BASE))


def merged(repo: Repo, one: str, other: str) -> Any:
    data = subprocess.run(
        ["git", "-C", str(repo.root), "cat-file", "blob", f"{repo.merge_tree([one, other])}:predecoder.yaml"],
        capture_output=True,
        check=True,
    ).stdout
    return load_yaml(data.decode(), location="merged")


def near(distance: int) -> list[tuple[int, int]]:
    return [(i, j) for i, j in combinations(range(len(KEYS)), 2) if j - i <= distance]


@pytest.mark.parametrize(("one", "other"), near(1), ids=lambda n: ".".join(KEYS[n]))
def test_edits_of_neighbouring_keys_are_joined(repo: Repo, tips: dict[str, str], one: int, other: int) -> None:
    expected = with_value(with_value(BASE, KEYS[one], "changed by a"), KEYS[other], "changed by b")
    assert merged(repo, tips[f"a{one}"], tips[f"b{other}"]) == expected


def test_edits_of_any_two_keys_are_joined(repo: Repo, tips: dict[str, str]) -> None:
    for one, other in near(len(KEYS)):
        expected = with_value(with_value(BASE, KEYS[one], "changed by a"), KEYS[other], "changed by b")
        assert merged(repo, tips[f"a{one}"], tips[f"b{other}"]) == expected


@pytest.mark.parametrize("key", range(len(KEYS)), ids=lambda n: ".".join(KEYS[n]))
def test_rival_edits_of_a_key_conflict(repo: Repo, tips: dict[str, str], key: int) -> None:
    with pytest.raises(MergeConflictError) as caught:
        repo.merge_tree([tips[f"a{key}"], tips[f"b{key}"]])
    assert caught.value.files == ("predecoder.yaml",)


def test_the_same_edit_on_both_sides_is_no_conflict(repo: Repo, tips: dict[str, str]) -> None:
    assert merged(repo, tips["a0"], tips["a0"]) == with_value(BASE, KEYS[0], "changed by a")
