"""Runs of released versions load: history, front, views, `show`, `report`, and the archive itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autoqec.contracts.events import ignore
from autoqec.orchestrator.archive import RestoredRun, replay_archive
from autoqec.orchestrator.editable_modules import checked_out_modules
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery.apply import reconcile
from autoqec.store.layout import RunLayout
from autoqec.system.git import Repo
from tests.conftest import Workspace
from tests.support.archives import unpacked

DATA = Path(__file__).parents[1] / "data"
ARCHIVES = sorted(DATA.glob("run-format-*.tar"))
# Status, verdict and number of parents of every round of an archive.
EXPECTED = {
    "run-format-1-front": [
        ("ok", "VERIFIED", 0), ("ok", "VERIFIED", 0), ("ok", "VERIFIED", 2), ("compile_error", None, 0),
        ("ok", "VERIFIED", 0), ("compile_error", None, 2),
    ],
    "run-format-1-measured": [
        ("ok", "SUSPICIOUS", 0), ("ok", "SUSPICIOUS", 0), ("ok", "SUSPICIOUS", 2), ("compile_error", None, 0),
    ],
}  # fmt: skip


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.stem)
def archive(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(scope="module")
def restored(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> RestoredRun:
    return replay_archive(archive, tmp_path_factory.mktemp("old") / "workspace", on_event=ignore)


def test_every_format_has_a_released_run() -> None:
    assert {path.stem for path in ARCHIVES} == set(EXPECTED)
    assert all(path.stat().st_size <= 300_000 for path in ARCHIVES)


def test_rounds_are_read_as_before(archive: Path, restored: RestoredRun) -> None:
    rows = RunMemory(restored.layout.root).history.rows()
    parents = [len(row.fork_from) if isinstance(row.fork_from, tuple) else 0 for row in rows]
    found = [(row.status, row.verify_verdict, count) for row, count in zip(rows, parents, strict=True)]
    assert found == EXPECTED[archive.stem] and restored.agrees


def test_rounds_that_changed_only_their_config_have_no_code_of_their_own(restored: RestoredRun) -> None:
    """Their branches hold the editable modules of an earlier version."""
    rounds = [row.round for row in RunMemory(restored.layout.root).history.rows() if row.status == "ok"]
    for number in rounds:
        with checked_out_modules(restored.layout, number) as modules_dir:
            assert modules_dir is None


def test_views_are_rebuilt_byte_for_byte(archive: Path, restored: RestoredRun) -> None:
    """The wording of the log may have changed; it still describes every round."""
    _, members = unpacked(archive)
    layout = restored.layout
    for path in (layout.pareto, layout.preview, layout.candidates, layout.fork_graph):
        was = members[f"run/{path.name}"]
        assert path.read_bytes() == was, path.name
        path.unlink()
        RunMemory(layout.root).rebuild_views()
        assert path.read_bytes() == was, path.name
    assert layout.log.read_text(encoding="utf-8").count("\n## Round ") == len(EXPECTED[archive.stem])


def test_recovery_finds_nothing_to_do(restored: RestoredRun) -> None:
    layout = RunLayout(restored.layout.repo_root.resolve(), restored.layout.run_id)
    assert [action.kind for action in reconcile(layout, Repo.discover(layout.repo_root))] == []


def test_show_and_report_work(archive: Path, restored: RestoredRun, tmp_path: Path) -> None:
    layout = restored.layout
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(DATA.parents[1]), "OMP_NUM_THREADS": "1"}
    workspace = Workspace(layout.repo_root, env)
    result = workspace.autoqec("show", layout.run_id)
    assert result.code == 0 and "compile_error" in result.out, result.err
    drawn = workspace.autoqec("show", layout.run_id, "--graph")
    assert drawn.code == 0, drawn.err
    lines = drawn.out.splitlines()
    expected = EXPECTED[archive.stem]
    assert len(lines) == len(expected) + 1 and lines[0].startswith("baseline")
    assert sum(" + round " in line for line in lines) == sum(parents == 2 for *_, parents in expected)
    assert sum(line.endswith("*") for line in lines) == len(json.loads(layout.pareto.read_bytes()))
    dot = workspace.autoqec("show", layout.run_id, "--dot")
    assert dot.code == 0 and dot.out.startswith("digraph") and dot.out.count("->") >= len(expected)
    value = workspace.autoqec("show", layout.run_id, "--graph", "--json")
    assert len(value.objects[0]["nodes"]) == len(expected) + 1
    assert workspace.autoqec("show", "--graph").code == 2
    made = workspace.autoqec("report", layout.run_id)
    assert made.code == 0, made.err
    assert layout.html.is_file()
    assert layout.run_id in workspace.autoqec("show").out


def test_archive_names_no_machine(archive: Path) -> None:
    """Except for the made-up path at which the run was recorded."""
    paths = re.compile(rb"(?<![\w.])/(?:root|tmp|work|home|Users|mnt)/[\w.-]+")
    _, members = unpacked(archive)
    texts = {name: data for name, data in members.items() if not name.endswith((".pt", ".bundle"))}
    assert {name: paths.findall(data) for name, data in texts.items() if paths.search(data)} == {}
