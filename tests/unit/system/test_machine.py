"""Machine snapshots, and code hashes that change exactly when the code does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from autoqec.system import machine


def test_snapshot_is_json_and_has_figures(tmp_path: Path) -> None:
    found = json.loads(json.dumps(machine.snapshot(tmp_path)))
    assert found["cpu"]["cores"] >= 1 and found["memory"]["total_gb"] > 0.1 and found["disk"]["free_gb"] > 0
    assert found["packages"]["torch"].split(".")[0].isdigit()


def test_import_loads_no_heavy_library() -> None:
    code = "import sys; from autoqec.system import machine; machine.snapshot(); print('torch' in sys.modules)"
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
def test_gpu_is_read_from_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: object
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = machine.gpu()
    assert {key: found[key] for key in ("name", "count") if key in found} == expected


def test_missing_nvidia_smi_means_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert machine.gpu() == {}


def test_tree_hash_depends_on_names_and_bytes_only(tmp_path: Path) -> None:
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


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a small package with the layout of the real one."""
    root = tmp_path / "autoqec"
    for name in (*machine.RESULT_PACKAGES, "decoders/modules", "report/templates", "lm", "store"):
        (root / name).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(machine, "_PACKAGE", root)
    monkeypatch.setattr(machine, "_EDITABLE_MODULES", root / "decoders" / "modules")
    return root


def hashes() -> tuple[str, str]:
    return machine.code_sha256(), machine.package_sha256()


def test_hashed_packages_exist() -> None:
    assert all((machine._PACKAGE / name / "__init__.py").is_file() for name in machine.RESULT_PACKAGES)


SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


@pytest.mark.parametrize("name", [f"{name}/a.py" for name in machine.RESULT_PACKAGES] + ["qec/weighted_mwpm.c"])
def test_change_that_can_change_a_result_changes_both_hashes(package: Path, name: str) -> None:
    code, whole = hashes()
    (package / name).write_text("1")
    assert machine.code_sha256() != code and machine.package_sha256() != whole


@pytest.mark.parametrize("name", ["qec/_match", "decoders/_local"])
def test_built_extension_changes_the_code_hash(package: Path, name: str) -> None:
    before = machine.code_sha256()
    (package / f"{name}{SUFFIX}").write_text("x")
    assert machine.code_sha256() != before


@pytest.mark.parametrize(
    "name", ["report/charts.py", "report/templates/run.html.j2", "store/jsonl.py", "verification/report.md.j2"]
)
def test_change_elsewhere_changes_the_package_hash_alone(package: Path, name: str) -> None:
    code, whole = hashes()
    (package / name).write_text("1")
    assert machine.code_sha256() == code and machine.package_sha256() != whole


@pytest.mark.parametrize("name", ["decoders/modules/new.py", "lm/prices.yaml", "qec/_match.of-another-python.so"])
def test_editable_modules_and_data_change_neither(package: Path, name: str) -> None:
    before = hashes()
    (package / name).write_text("1")
    assert hashes() == before


def test_links_to_directories_and_byte_code_change_neither(package: Path, tmp_path: Path) -> None:
    before = hashes()
    elsewhere = tmp_path / "elsewhere"
    for directory in (elsewhere, package / "qec" / "__pycache__"):
        directory.mkdir()
        (directory / "a.py").write_text("1")
    (package / "qec" / "linked").symlink_to(elsewhere)
    assert hashes() == before


def test_checkout_and_installed_wheel_have_the_same_hash(package: Path) -> None:
    command_line = package.parent / "cli"
    command_line.mkdir()
    (command_line / "b.py").write_text("1")
    (package / "cli").symlink_to("../cli")
    before = hashes()
    (package / "cli").unlink()
    command_line.rename(package / "cli")
    assert hashes() == before
    (package / "cli" / "b.py").write_text("2")
    assert machine.code_sha256() == before[0] and machine.package_sha256() != before[1]


def test_fingerprint_is_stable() -> None:
    first = machine.requirements_fingerprint()
    machine.requirements_fingerprint.cache_clear()
    assert machine.requirements_fingerprint() == first and len(first) == 16
