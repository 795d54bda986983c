"""Verified models of the package: hashes, use without a run, and repeated verification."""

from __future__ import annotations

import gzip
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import stim

from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.events import ignore
from autoqec.contracts.profiles import profile_of
from autoqec.decoders import checkpoint
from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.board import decoders as board_decoders
from autoqec.extensions.board.circuits import Model, load_circuit, load_circuits
from autoqec.extensions.board.contracts import BoardDecoder
from autoqec.models import load_models, model_env, model_path, model_report, unpack_archive, verify_model
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import sample, unpack
from autoqec.qec.stats import error_mask
from autoqec.runner.family import build_agent
from autoqec.runner.logger import NullLogger
from autoqec.runner.training import TrainingBudget, phases, train
from autoqec.sinter import PredecoderDecoder, decoders
from autoqec.store.files import dump_config
from autoqec.store.layout import PACKAGED_BOARD, PACKAGED_MODELS
from tests.support.envs import surface, surface_family
from tests.support.shown import check_error

NAMES = sorted(load_models())
NAME = "surface_d3_z"
FAMILY = "surface_family"
MAX_TOTAL_BYTES = 20_000_000


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A directory with a copy of one model."""
    shutil.copytree(PACKAGED_MODELS / NAME, tmp_path / "models" / NAME)
    return tmp_path / "models"


def test_models_are_small_and_verified() -> None:
    assert NAME in NAMES
    assert sum(path.stat().st_size for path in PACKAGED_MODELS.rglob("*")) <= MAX_TOTAL_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_every_model_is_the_one_that_its_report_verified(name: str) -> None:
    report, model = model_report(name), load_models()[name]
    assert report.verdict == "VERIFIED" and report.claim == model.claim
    assert (report.run_id, report.round, report.env_name) == (model.run_id, model.round, model.env_name)
    assert set(checkpoint.read(model_path(name))) == checkpoint.CHECKPOINT_KEYS
    assert model_env(name).name == model.env_name
    dsl = parse_dsl(checkpoint.read(model_path(name))["dsl_config"])
    assert dsl.translation_invariant == model.translation_invariant


@pytest.mark.parametrize("name", NAMES)
def test_archive_of_every_model_holds_its_checkpoint_and_the_secret(name: str, tmp_path: Path) -> None:
    model, path = load_models()[name], unpack_archive(name, tmp_path / "run.tar")
    assert sha256_bytes(path.read_bytes()) == model.archive_sha256
    with tarfile.open(path) as archive:
        members = {member.name: member for member in archive.getmembers() if member.isfile()}
        (packed,) = [found for found in members if found.endswith(f"round_{model.round}/checkpoint.pt")]
        assert any("secret" in found for found in members), "without it the verification cannot be repeated"
        stream = archive.extractfile(members[packed])
        assert stream is not None and sha256_bytes(stream.read()) == model.checkpoint_sha256


def test_verification_of_changed_files_is_refused(copied: Path) -> None:
    archive = copied / NAME / "run.tar.gz"
    content = archive.read_bytes()
    other = gzip.compress(gzip.decompress(content)[:-1] + b"x")
    for changed in (content + b"x", content[:-1], content[:1000] + b"x" + content[1001:], other, b"", b"x"):
        archive.write_bytes(changed)
        with pytest.raises(ContractError, match="is not the file that was verified"):
            verify_model(NAME, ignore, copied)
    archive.unlink()
    with pytest.raises(ContractError, match="is missing"):
        verify_model(NAME, ignore, copied)


def test_replay_of_a_compressed_archive_says_what_to_do(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = copied / NAME / "run.tar.gz"
    assert run_cli(group, ["replay", str(archive), "--into", str(tmp_path / "into")]) == 2
    shown = capsys.readouterr().err
    assert f"error: {archive}: is compressed (gzip)\nhint: gunzip it first" in shown and "models verify" in shown


def test_archive_that_grows_without_limit_is_refused(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoqec.models.MAX_ARCHIVE_BYTES", 2**16)
    with pytest.raises(ContractError, match="is not the file that was verified"):
        verify_model(NAME, ignore, copied)


def test_verification_that_disagrees_exits_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("autoqec.cli.commands.models.verify_model", lambda name, on_event: (False, "counts differ"))
    assert run_cli(group, ["models", "verify", NAME]) == 1
    assert "counts differ" in capsys.readouterr().out


def test_changed_checkpoint_is_refused(copied: Path) -> None:
    path = copied / NAME / "checkpoint.pt"
    assert model_path(NAME, copied) == path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ContractError, match="is not the file that was verified"):
        model_path(NAME, copied)
    path.unlink()
    with pytest.raises(ContractError, match="is missing"):
        model_path(NAME, copied)


@pytest.mark.parametrize("file", ["env.yaml", "verification_report.json"])
def test_model_with_a_changed_env_or_without_report_is_refused(file: str, copied: Path) -> None:
    path = copied / NAME / file
    if file == "env.yaml":
        path.write_text(path.read_text().replace("target_p: 0.005", "target_p: 0.006"), encoding="utf-8")
    else:
        path.unlink()
    with pytest.raises(ContractError, match="is not the file that was verified|is missing") as error:
        model_path(NAME, copied)
    assert str(path) in str(error.value) and "--force-reinstall" in (error.value.hint or "")


def test_damaged_description_is_refused(copied: Path) -> None:
    (copied / NAME / "model.json").write_text("{")
    with pytest.raises(ContractError, match="is not JSON"):
        load_models(copied)
    (copied / NAME / "model.json").write_text(json.dumps({"schema_version": 9}))
    with pytest.raises(ContractError, match="schema_version"):
        load_models(copied)


@pytest.mark.parametrize("name", NAMES)
def test_sinter_offers_every_model_by_name(name: str) -> None:
    problem = Problem.from_env(model_env(name))
    shots = sample(problem, 200, 1)
    compiled = decoders()[f"autoqec:{name}"].compile_decoder_for_dem(dem=problem.dem)
    packed = compiled.decode_shots_bit_packed(bit_packed_detection_event_data=shots.detection_events)
    expected = CheckpointDecoder.of(model_env(name), model_path(name)).decode(shots.detection_events)
    assert np.array_equal(unpack(packed, problem.n_observables), expected)
    assert (expected != shots.observables).sum() < shots.observables.sum(), "fewer failures than without a decoder"


def test_sinter_compares_the_hash_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Path:
        raise ContractError("changed")

    monkeypatch.setattr("autoqec.sinter.model_path", refuse)
    with pytest.raises(ContractError, match="changed"):
        decoders()[f"autoqec:{NAME}"].compile_decoder_for_dem(dem=Problem.from_env(model_env(NAME)).dem)


def test_decode_with_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = Problem.from_env(model_env(NAME))
    shots = sample(problem, 300, 2)
    stim.write_shot_data_file(
        data=shots.detection_events, path=tmp_path / "shots.b8", format="b8", num_detectors=problem.n_detectors
    )
    files = ["--in", str(tmp_path / "shots.b8"), "--out", str(tmp_path / "out.01")]
    assert run_cli(group, ["decode", "--model", NAME, *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"] is True
    written = [line == "1" for line in (tmp_path / "out.01").read_text().split()]
    expected = CheckpointDecoder.of(model_env(NAME), model_path(NAME)).decode(shots.detection_events)
    assert written == expected[:, 0].tolist()


@pytest.mark.parametrize(("distance", "is_member"), [(3, True), (5, True), (7, False)])
def test_family_model_decodes_every_member_without_a_warning(
    distance: int, is_member: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """d=5 is the target; d=7 is another distance, whose gain was not verified."""
    problem = Problem.from_env(surface(distance, 0.005))
    shots = sample(problem, 2000, 2)
    stim.write_shot_data_file(
        data=shots.detection_events, path=tmp_path / "shots.b8", format="b8", num_detectors=problem.n_detectors
    )
    (tmp_path / "circuit.stim").write_text(str(problem.circuit), encoding="utf-8")
    files = ["--in", str(tmp_path / "shots.b8"), "--out", str(tmp_path / "out.b8")]
    dem = ["--dem", str(tmp_path / "circuit.stim")]
    assert run_cli(group, ["decode", "--model", FAMILY, *files, *dem]) == 0
    assert ("warning" in capsys.readouterr().err) == (not is_member)
    found = np.fromfile(tmp_path / "out.b8", np.uint8).astype(bool)[:, None]
    offered = decoders()[f"autoqec:{FAMILY}"].compile_decoder_for_dem(dem=problem.dem)
    packed = offered.decode_shots_bit_packed(bit_packed_detection_event_data=shots.detection_events)
    assert np.array_equal(found, packed.astype(bool))
    assert (found != shots.observables).sum() < shots.observables.sum() / 4


@pytest.mark.parametrize("arguments", [[], ["c.pt", "--model", NAME], ["--model", NAME, "--env", "smoke"]])
def test_decode_takes_either_a_checkpoint_or_a_model(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--in", str(tmp_path / "a.b8"), "--out", str(tmp_path / "b.b8")]
    assert run_cli(group, ["decode", *arguments, *files]) == 2
    check_error(capsys.readouterr().err, "--model", hint=True)


def test_commands_list_locate_and_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(group, ["models", "--json"]) == 0
    shown = capsys.readouterr()
    assert [json.loads(line)["name"] for line in shown.out.splitlines()] == NAMES
    assert all(f"{name} " in shown.err for name in NAMES) and "of 100,000 shots" in shown.err
    assert run_cli(group, ["models", "list", "--json"]) == 0
    assert capsys.readouterr() == shown
    assert run_cli(group, ["models", "show", "--json", *NAMES]) == 0
    details = capsys.readouterr()
    assert details.out == shown.out
    shown = details
    # A claim names plain matching; whether a model also beats correlated matching stands beside it.
    strongest = ["mwpm_correlated" if model_env(name).plain == "mwpm" else "bposd_cs10" for name in NAMES]
    assert all(shown.err.count(f"against {name}: ") == strongest.count(name) for name in set(strongest))
    claims = [str(member) for member in model_report(FAMILY).members if member.holds]
    assert len(claims) > 1 and all(f"  {claim}: " in shown.err for claim in claims)
    for name in (NAME, FAMILY):
        assert run_cli(group, ["models", "path", name]) == 0
        assert capsys.readouterr().out == f"{model_path(name)}\n"
    assert run_cli(group, ["models", "path", "no_such_model"]) == 2
    check_error(capsys.readouterr().err, "no_such_model", hint=True)


def test_model_on_another_circuit_is_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    circuits = load_circuits(PACKAGED_BOARD)
    decoder, fits = board_decoders.load_decoders(PACKAGED_BOARD)[f"autoqec:{NAME}"], board_decoders.fits
    assert isinstance(decoder, BoardDecoder) and fits(decoder, circuits["surface_d3_z_depol_p0.003"])
    for name in ("surface_d5_z_depol_p0.003", "surface_d3_x_depol_p0.005", "surface_d3_z_r30_depol_p0.003"):
        assert not fits(decoder, circuits[name])
    argv = ["board", "measure", "surface_d5_z_depol_p0.003", f"autoqec:{NAME}", "--dir", str(tmp_path / "b")]
    assert run_cli(group, argv) == 2
    check_error(capsys.readouterr().err, "does not apply", hint=True)


@pytest.fixture
def local_model(copied: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of type `local` trained on a family of d=3 and 5; return its directory."""
    env = surface_family((3, 3), (5, 5), p=(0.005, 0.01))
    block = {"hidden": 4, "space": 1, "time": 1}
    dsl = parse_dsl({"type": "local", "local": block, "training": {"finetune_share": 0}})
    problem = Problem.from_env(env)
    model = compile_predecoder(dsl, problem, seed=1)
    plan = phases(problem, dsl, profile_of("smoke"), TrainingBudget(4096, 0), seed=1)
    train(build_agent(model, dsl, problem), plan, dsl, NullLogger(), seed=1)
    target = copied / "family"
    shutil.copytree(copied / NAME, target)
    checkpoint.save(target / "checkpoint.pt", model, dsl)
    (target / "env.yaml").write_text(dump_config(env.dump()), encoding="utf-8")
    info = json.loads((target / "model.json").read_text())
    sha = sha256_bytes((target / "checkpoint.pt").read_bytes())
    info |= {"name": "family", "checkpoint_sha256": sha, "translation_invariant": True}
    (target / "model.json").write_text(json.dumps(info))
    monkeypatch.setattr(board_decoders, "load_models", lambda: load_models(copied))
    monkeypatch.setattr(board_decoders, "model_env", lambda name: model_env(name, copied))
    return target


def test_local_model_fits_other_sizes_of_its_code(local_model: Path) -> None:
    """Circuits of the family and others; not another basis, noise or code."""
    circuits = load_circuits(PACKAGED_BOARD)
    family = BoardDecoder(name="autoqec:family", source=board_decoders.MODEL_SOURCE, key="autoqec:family")
    assert board_decoders.load_decoders(PACKAGED_BOARD)["autoqec:family"] == family
    found = {name for name, circuit in circuits.items() if board_decoders.fits(family, circuit)}
    assert {"surface_d3_z_depol_p0.003", "surface_d5_z_depol_p0.005", "surface_d3_z_r30_depol_p0.003"} <= found
    assert {(circuits[name].code.task, circuits[name].noise) for name in found} == {  # type: ignore[union-attr]
        ("surface_code:rotated_memory_z", "circuit_depolarizing")
    }
    for name in ("surface_d3_z_depol_p0.003", "surface_d5_z_depol_p0.005", "surface_d3_z_r30_depol_p0.003"):
        model = Model.of(load_circuit(circuits[name], PACKAGED_BOARD), location=name)
        shots = model.sample(0, 0)
        decoder = PredecoderDecoder(str(local_model / "env.yaml"), str(local_model / "checkpoint.pt"))
        packed = decoder.compile_decoder_for_dem(dem=model.dem).decode_shots_bit_packed(
            bit_packed_detection_event_data=shots.detection_events
        )
        wrong = error_mask(unpack(packed, 1).astype(bool), shots.observables)
        assert len(packed) == len(shots) and wrong.mean() < 0.1


@pytest.mark.parametrize(
    "name", [name if name == NAME else pytest.param(name, marks=pytest.mark.long) for name in NAMES]
)
def test_verification_of_a_model_is_repeated(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run_cli(group, ["models", "verify", name]), model_report(name)
    shown = capsys.readouterr()
    assert name in shown.err, "what takes long is announced"
    if code == 0:
        assert "VERIFIED again" in shown.out
        return
    # Only rounding errors of another processor may change predictions, and only of belief propagation.
    assert code == 1 and report.backend == "bposd" and report.cost is not None
    assert (
        "the verdict is VERIFIED, but " in shown.out and f"was made on {report.cost.cpu_model}, this is " in shown.out
    )


def test_unknown_model_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"unknown model 'surface_d3'; hint: perhaps surface_d3_[zx], surface_d3_[zx]"):
        model_path("surface_d3")
