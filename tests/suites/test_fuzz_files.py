"""Fuzzing of files that a run or its user passes to autoqec: env files, configs, history, attempts, manifests.

A malformed file ends with a documented exit status and one message: no traceback, no change outside the workspace, no
process but git.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.provenance import Manifest
from autoqec.errors import AutoqecError
from autoqec.store import files
from autoqec.store.layout import RunLayout
from autoqec.store.round_files import read_contract
from tests.support.hostile_input import mutated_bytes, mutated_value, only_inside

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "tests" / "data" / "run.tar"
ENVS = sorted((ROOT / "autoqec" / "envs" / "builtin").glob("*.yaml"))
CONFIG = ROOT / "autoqec" / "decoders" / "modules" / "predecoder.yaml"
LINES, OBJECTS = ("history.jsonl", "attempts.jsonl"), ("run.json", "pareto.json", "round_1/round_1_pointer.json")
COMMANDS = (("show",), ("show", "--json"), ("review-log",), ("export", "--format", "csv"), ("diagnose",))
DOCUMENTED = (0, 1, 2, 3)

small = settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
large = settings(max_examples=3500, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunLayout]:
    """A workspace with one run of today."""
    root = tmp_path_factory.mktemp("workspace")
    with tarfile.open(ARCHIVE) as tar:
        run_id = json.load(tar.extractfile("archive.json"))["run_id"]  # type: ignore[arg-type]
        tar.extractall(root, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (root / "runs").mkdir()
    (root / "run").rename(root / "runs" / run_id)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        subprocess.run(["git", "init", "-q", "."], check=True)
        assert run_cli(group, ["show", run_id]) == 0
        yield RunLayout(root, run_id)


def file_of_a_run(data: st.DataObject, layout: RunLayout) -> tuple[Path, bytes]:
    name = data.draw(st.sampled_from((*LINES, *OBJECTS, "env.yaml", "round_1/metrics.json")))
    path = layout.root / name
    honest = path.read_bytes()
    if name == "env.yaml" or data.draw(st.booleans()):
        return path, data.draw(mutated_bytes(honest))
    if name not in LINES:
        return path, json.dumps(data.draw(mutated_value(json.loads(honest)))).encode()
    lines = honest.splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    lines[number] = json.dumps(data.draw(mutated_value(json.loads(lines[number])))).encode()
    return path, b"\n".join(lines) + b"\n"


def check_commands(data: st.DataObject, layout: RunLayout) -> None:
    path, hostile = file_of_a_run(data, layout)
    name, *options = data.draw(st.sampled_from(COMMANDS))
    honest = path.read_bytes()
    out, err = io.StringIO(), io.StringIO()
    try:
        path.write_bytes(hostile)
        with only_inside(layout.repo_root), redirect_stdout(out), redirect_stderr(err):
            code = run_cli(group, [name, layout.run_id, *options])
    finally:
        path.write_bytes(honest)
    assert code in DOCUMENTED and "Traceback" not in err.getvalue(), f"exit status {code}\n{err.getvalue()[-3000:]}"
    assert "\x1b[2J" not in out.getvalue() + err.getvalue()


def check_reader(read: Callable[[], Any]) -> None:
    failure = None
    try:
        read()
    except AutoqecError as error:
        failure = error
    assert failure is None or (failure.exit_code in (2, 3) and str(failure))


def read_config(path: Path) -> Any:
    return parse_dsl(files.load_yaml(files.read_text(path, what="config"), location="config"))


def check_env_or_config(data: st.DataObject, layout: RunLayout) -> None:
    source = data.draw(st.sampled_from([*ENVS, CONFIG]))
    honest = source.read_bytes()
    value = mutated_value(yaml.safe_load(honest)).map(lambda value: json.dumps(value).encode())  # JSON is YAML
    path = layout.repo_root / "hostile.yaml"
    path.write_bytes(data.draw(mutated_bytes(honest) | value))
    read = read_config if source == CONFIG else files.load_env
    with only_inside(layout.repo_root):
        check_reader(lambda: read(path))


def check_manifest(data: st.DataObject, layout: RunLayout) -> None:
    manifest = layout.round(1).manifest
    honest = manifest.read_bytes()
    value = mutated_value(json.loads(honest)).map(lambda value: json.dumps(value).encode())
    try:
        manifest.write_bytes(data.draw(mutated_bytes(honest) | value))
        with only_inside(layout.repo_root):
            check_reader(lambda: read_contract(layout.round(1).manifest, Manifest))
    finally:
        manifest.write_bytes(honest)


CHECKS = {"commands": check_commands, "env or config": check_env_or_config, "manifest": check_manifest}


@pytest.mark.parametrize("name", CHECKS)
@seed(1)
@small
@given(data=st.data())
def test_malformed_file_is_reported(run: RunLayout, name: str, data: st.DataObject) -> None:
    CHECKS[name](data, run)


@pytest.mark.long
@pytest.mark.parametrize("name", CHECKS)
@large
@given(data=st.data())
def test_malformed_file_is_reported_in_many_cases(run: RunLayout, name: str, data: st.DataObject) -> None:
    CHECKS[name](data, run)


def test_watch_reports_a_write_outside_and_a_process(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    with only_inside(inside):
        (inside / "file").write_text("")
    with pytest.raises(AssertionError, match="outside"), only_inside(inside):
        (tmp_path / "outside").write_text("")
    with pytest.raises(AssertionError, match="Popen"), only_inside(inside):
        subprocess.run(["true"], check=True)
