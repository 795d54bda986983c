"""Safe YAML parsing, and env files with precise errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autoqec
from autoqec.contracts.env import StimFileCode
from autoqec.errors import UsageError
from autoqec.store import files

BUILTIN = sorted((Path(autoqec.__file__).parent / "envs" / "builtin").glob("*.yaml"))
CIRCUIT = "R 0\nX_ERROR(0.1) 0\nM 0\nDETECTOR rec[-1]\nREPEAT 2 {\n    TICK\n}\n"
FILE_ENV = """
name: mine
code: {kind: stim_file, path: sub/circuit.stim}
noise: {model: from_file}
seed_policy: {train: [0, 9], val: [10, 19], holdout: [20, 29]}
"""

BOMB = "a: &a [x, x, x, x]\nb: &b [*a, *a, *a, *a]\nc: [*b, *b, *b, *b]\n"


@pytest.mark.parametrize(
    ("text", "words"),  # None: the parser's own message
    [
        (BOMB, "anchors"),
        ("a: *b", "anchors"),
        ("a: 1\nb: 2\na: 3", "twice"),
        ("x:\n  a: 1\n  a: 1", "twice"),
        ("a: .nan", "finite"),
        ("a: -.inf", "finite"),
        ("a: 1e999", "finite"),
        ("a: !!python/object/apply:os.system [echo]", "tags"),
        ("a: !!binary aGk=", "tags"),
        ("1: x", "not a string"),
        ("[a]: x", "not a string"),
        ("<<: {a: 1}\nb: 2\n<<: {c: 2}", "twice"),
        ("a: " + "9" * 40, "digits"),
        ("[" * 5000, "nest(ed|ing)"),
        ("a: [1, 2", None),
        ("a: b: c", None),
        ("a: 1\n---\nb: 2", None),
        ("a: \x00", None),
        ("\ud800", None),
    ],
)
def test_unsafe_yaml_is_refused(text: str, words: str | None) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        files.load_yaml(text, location="some.yaml")
    assert "some.yaml" in str(caught.value) and "hint:" in str(caught.value)


def test_error_names_the_line() -> None:
    with pytest.raises(UsageError, match=r"some\.yaml:3"):
        files.load_yaml("a: 1\nb: 2\na: 3\n", location="some.yaml")


def test_oversized_file_is_refused_without_reading_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 10)
    with pytest.raises(UsageError, match="larger"):
        files.load_yaml("a: 123456789", location="x")


def test_scalars_have_the_type_they_look_like() -> None:
    text = "{a: 3e-3, b: 010, c: no, d: 2024-01-01, e: 1:30, f: true, g: null, h: '3e-3', i: -.5, j: 0x10, k: +4}"
    assert files.load_yaml(text, location="x") == {
        "a": 0.003,
        "b": 10,
        "c": "no",
        "d": "2024-01-01",
        "e": "1:30",
        "f": True,
        "g": None,
        "h": "3e-3",
        "i": -0.5,
        "j": "0x10",
        "k": 4,
    }


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["yes", "1e5", "~", "", "a: b", "# c", "- x", "|", "=", "<<"])
    | st.sampled_from(["a\n\nb\n", "x\n\n", " a\nb", "a\t\nb", "a \n b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=6), PLAIN, max_size=4))
def test_dumped_value_is_read_back(value: dict[str, Any]) -> None:
    assert files.load_yaml(files.dump_config(value) or "{}", location="x") == value


def test_dump_separates_keys_with_blank_lines() -> None:
    text = files.dump_config({"type": "mlp", "mlp": {"hidden": 8, "deep": {"x": [1, 2], "y": 2.5}}, "last": ()})
    assert text == ("type: mlp\n\nmlp:\n\n  hidden: 8\n\n  deep:\n\n    x: [1, 2]\n\n    y: 2.5\n\nlast: []\n")


@pytest.mark.parametrize("path", BUILTIN, ids=lambda path: path.stem)
def test_builtin_envs_survive_freezing_and_loading(path: Path) -> None:
    env, frozen = files.load_env(path)
    assert files.parse_env(frozen, location="frozen") == env
    assert files.load_env(path)[1] == frozen


def test_frozen_env_contains_its_circuit_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "circuit.stim").write_text(CIRCUIT)
    (tmp_path / "env.yaml").write_text(FILE_ENV)
    monkeypatch.chdir("/")
    env, frozen = files.load_env(tmp_path / "env.yaml")
    assert isinstance(env.code, StimFileCode) and env.code.text == CIRCUIT
    (tmp_path / "sub" / "circuit.stim").unlink()
    assert files.parse_env(frozen, location="frozen") == env
    (tmp_path / "frozen.yaml").write_text(frozen)
    assert files.load_env(tmp_path / "frozen.yaml") == (env, frozen)


def test_env_errors_are_one_sentence_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "env.yaml"
    cases: list[tuple[Any, str]] = [
        (None, "No such file"),
        (b"\xff\xfe", "UTF-8"),
        (b"a: [", "env.yaml"),
        (b"name: x", "env.yaml"),
        (b"[]", "env.yaml"),
        (b"", "env.yaml"),
        (FILE_ENV.encode(), "circuit.stim"),
    ]
    for data, words in cases:
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(UsageError, match=words) as caught:
            files.load_env(path)
        assert "hint:" in str(caught.value), words
    with pytest.raises(UsageError, match="regular"):
        files.load_env(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="regular"):
        files.load_env(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("noise:", "nois:", "unknown key `nois`; hint: perhaps noise$"),
        ("  distance:", "  distnce:", r"unknown key `code\.distnce`; hint: perhaps code\.distance$"),
        ("  target_p:", "  targetp:", r"unknown key `noise\.targetp`; hint: perhaps noise\.target_p$"),
        ("  alpha:", "  alhpa:", r"unknown key `protocol\.alhpa`; hint: perhaps protocol\.alpha"),
        ("backend:", "qqq:", "unknown key `qqq`; hint: edit"),
    ],
)
def test_unknown_key_of_an_env_is_named_with_those_that_are_like_it(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    text = (BUILTIN[0].parent / "smoke.yaml").read_text()
    assert text.count(f"\n{old}") == 1
    (tmp_path / "env.yaml").write_text(text.replace(f"\n{old}", f"\n{new}"))
    with pytest.raises(UsageError, match=words):
        files.load_env(tmp_path / "env.yaml")


def test_env_without_its_circuit_is_not_frozen() -> None:
    with pytest.raises(UsageError, match=r"code\.text"):
        files.parse_env(FILE_ENV, location="x")


@pytest.mark.parametrize("kind", ["FIFO", "endless device", "directory"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    path = {"FIFO": tmp_path / "fifo", "endless device": Path("/dev/zero"), "directory": tmp_path}[kind]
    if kind == "FIFO":
        os.mkfifo(path)
    with pytest.raises(UsageError, match="is not a regular file"):
        files.read_bytes(path)
