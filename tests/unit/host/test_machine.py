"""What the machine says about itself, and hashes that change exactly when the code does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from autoqec.host import machine


def test_snapshot_is_json_and_has_figures(tmp_path: Path) -> None:
    found = json.loads(json.dumps(machine.snapshot(tmp_path)))
    assert found["cpu"]["cores"] >= 1 and found["memory"]["total_gb"] > 0.1 and found["disk"]["free_gb"] > 0
    assert found["packages"]["torch"].split(".")[0].isdigit()


def test_nothing_heavy_is_imported() -> None:
    code = "import sys; from autoqec.host import machine; machine.snapshot(); print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 'NVIDIA H200, 143771, 560.1'; echo 'NVIDIA H200, 143771, 560.1'", {"name": "NVIDIA H200", "count": 2}),
        ("echo 'No devices were found'", {}),
        ("exit 9", {}),
        ("true", {}),
    ],
)
def test_the_gpu_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: object) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = machine.gpu()
    assert {key: found[key] for key in ("name", "count") if key in found} == expected


def test_no_gpu_program_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert machine.gpu() == {}


def test_a_tree_hash_sees_names_and_bytes_and_nothing_else(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "a.py").write_text("1")
    (tree / "deep" / "b.yaml").write_text("2")
    first = machine.tree_sha256(tree)
    (tree / "__pycache__").mkdir()
    (tree / "__pycache__" / "a.pyc").write_text("x")
    shutil.copytree(tree, tmp_path / "copy")
    assert machine.tree_sha256(tree) == first == machine.tree_sha256(tmp_path / "copy")
    (tree / "a.py").rename(tree / "c.py")
    renamed = machine.tree_sha256(tree)
    (tree / "c.py").write_text("3")
    assert len({first, renamed, machine.tree_sha256(tree)}) == 3


def test_the_code_hash_leaves_the_search_surface_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "autoqec"
    surface = package / "decoders" / "modules"
    surface.mkdir(parents=True)
    (tmp_path / "cli").mkdir()
    (package / "cli").symlink_to("../cli")
    (package / "a.py").write_text("1")
    (tmp_path / "cli" / "b.py").write_text("1")
    monkeypatch.setattr(machine, "_PACKAGE", package)
    monkeypatch.setattr(machine, "_SURFACE", surface)
    first = machine.code_sha256()
    (surface / "new.py").write_text("search")
    assert machine.code_sha256() == first
    (tmp_path / "cli" / "b.py").write_text("2")
    second = machine.code_sha256()
    (package / "a.py").write_text("2")
    assert len({first, second, machine.code_sha256()}) == 3
    linked = machine.code_sha256()
    (package / "cli").unlink()
    (tmp_path / "cli").rename(package / "cli")
    assert machine.code_sha256() == linked, "an installed wheel has the same hash as a checkout"


def test_the_code_hash_covers_what_decides_figures_and_the_judges_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "autoqec"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for name in ("qec", "eval", "report/templates", "lm"):
        (package / name).mkdir(parents=True)
    monkeypatch.setattr(machine, "_PACKAGE", package)
    monkeypatch.setattr(machine, "_SURFACE", package / "decoders" / "modules")
    found = [machine.code_sha256()]
    for name in ("qec/match.c", "eval/report.md.j2", f"qec/_match{suffix}"):
        (package / name).write_text("x")
        found.append(machine.code_sha256())
    assert len(set(found)) == 4
    for name in (
        "report/templates/run.html.j2",
        "lm/prices.yaml",
        f"qec/_match{suffix}",
        "qec/_match.of-another-python.so",
    ):
        (package / name).write_text("another")
        assert machine.code_sha256() == found[-1], name


def test_fingerprint_is_stable() -> None:
    first = machine.requirements_fingerprint()
    machine.requirements_fingerprint.cache_clear()
    assert machine.requirements_fingerprint() == first and len(first) == 16
