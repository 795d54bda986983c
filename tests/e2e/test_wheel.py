"""A wheel built from a copy of the sources and used outside the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import stim

import autoqec
from autoqec.system import machine

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.so")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "LICENSE", "docs/pypi.md"):
        (sources / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, sources / name)
    for name in ("autoqec", "cli"):
        shutil.copytree(ROOT / name, sources / name, symlinks=True, ignore=LEFT_OUT)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w"]
    subprocess.run([*command, sources / "dist", sources], check=True)
    (made,) = (sources / "dist").glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def run(installed: Path, directory: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run `autoqec …` from the wheel: its path entry precedes that of the repository."""
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-P", "-m", "autoqec.cli", *argv]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)


def test_wheel_has_one_top_level_package_and_no_duplicates(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    assert {name.split("/")[0] for name in names} == {"autoqec", f"autoqec-{autoqec.__version__}.dist-info"}
    tracked = {
        path.relative_to(ROOT).as_posix() for ending in ("py", "md") for path in (ROOT / "cli").rglob(f"*.{ending}")
    }
    assert {f"autoqec/{name}" for name in tracked} <= set(names)
    data = (
        *("py.typed", "data/configs/toy_inmemory.yaml"),
        *(
            "extensions/language_models/clients/prices.yaml",
            "qec/weighted_mwpm.c",
            "decoders/local_network.c",
            "decoders/local_kernel.c",
        ),
    )
    assert {f"autoqec/{name}" for name in data} <= set(names)


def test_wheel_supports_every_python(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name
    libraries = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    built = ["autoqec/decoders/_local.abi3.so", "autoqec/qec/_match.abi3.so"]
    assert sorted(libraries) in ([], built), "none where there is no compiler"


def test_folder_cli_cannot_be_imported_by_its_own_name(installed: Path, tmp_path: Path) -> None:
    code = f"import sys; sys.path.append({str(installed)!r}); import autoqec; import cli"
    result = subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "No module named 'cli'" in result.stderr


def test_command_works_in_an_empty_directory(installed: Path, tmp_path: Path) -> None:
    assert run(installed, tmp_path, "--version").stdout == f"autoqec {autoqec.__version__}\n"
    made = run(installed, tmp_path, "init", "workspace")
    assert made.returncode == 0, made.stderr
    planned = run(installed, tmp_path / "workspace", "run", "env.yaml", "--profile", "smoke", "--dry-run")
    assert planned.returncode == 0, planned.stderr


def test_models_of_the_wheel_decode_through_sinter(installed: Path, tmp_path: Path) -> None:
    found = run(installed, tmp_path, "models", "path", "surface_d3_z")
    assert found.returncode == 0 and Path(found.stdout.strip()).is_relative_to(installed), found.stderr
    circuit = stim.Circuit.generated(
        "surface_code:rotated_memory_z", distance=3, rounds=3, after_clifford_depolarization=0.005,
        before_measure_flip_probability=0.005, after_reset_flip_probability=0.005,
        before_round_data_depolarization=0.005,
    )  # fmt: skip
    circuit.to_file(tmp_path / "d3.stim")
    command = ["collect", "--circuits", "d3.stim", "--decoders", "autoqec:surface_d3_z", "--processes", "1"]
    command += ["--max_shots", "2000", "--custom_decoders_module_function", "autoqec.sinter:decoders"]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    script = "import sys, sinter; sys.argv[0] = 'sinter'; from sinter._command._main import main; main()"
    result = subprocess.run(
        [sys.executable, "-P", "-c", script, *command], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0 and "autoqec:surface_d3_z" in result.stdout, result.stderr


def test_board_of_the_wheel_is_shown_and_measured(installed: Path, tmp_path: Path) -> None:
    assert run(installed, tmp_path, "board", "show").returncode == 0
    measured = run(installed, tmp_path, "board", "measure", "surface_d3_z_depol_p0.005", "mwpm", "--shots", "1000")
    assert measured.returncode == 0 and "1 block reproduced exactly" in measured.stdout, measured.stderr
    assert (tmp_path / "board" / "results.jsonl").is_file()


def test_wheel_has_the_code_hash_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    code = "from autoqec.system import machine; print(machine.__file__, machine.code_sha256())"
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-P", "-c", code]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    path, digest = result.stdout.split()
    assert Path(path).is_relative_to(installed)
    if (installed / "autoqec/qec/_match.abi3.so").exists() == bool(list((ROOT / "autoqec/qec").glob("_match*.so"))):
        assert digest == machine.code_sha256()


def test_file_times_of_an_installed_package_are_ignored(installed: Path, tmp_path: Path) -> None:
    """`pip install` unpacks in any order, so that weighted_mwpm.c may be newer than the library built from it."""
    (installed / "autoqec/qec/weighted_mwpm.c").touch()
    code = "from autoqec.qec import weighted_mwpm as m; print(m._LIBRARY.is_relative_to(sys.path[0]), m.is_outdated())"
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-P", "-c", f"import sys; {code}"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == "True False\n"
