"""`autoqec replay` of hostile archives: each attack is refused and changes nothing."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from autoqec.store.files import dump_config
from tests.support.archives import Archive, git, snapshot, special, tree_of, with_baseline, write_tar

HONEST = Archive.read()
RUN = HONEST.run_id
PIN = next(ref for ref in HONEST.manifest["refs"] if ref.startswith("refs/autoqec/pin/"))
TIP = HONEST.manifest["refs"][PIN]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory; its sibling `home` has files of the user that no archive may change."""
    home, working_directory = tmp_path / "home", tmp_path / "here"
    (home / ".ssh").mkdir(parents=True)
    (home / ".bashrc").write_text("mine\n")
    (home / ".ssh/authorized_keys").write_text("mine\n")
    (home / "config").write_text("mine\n")
    working_directory.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(working_directory)
    return working_directory


def refused(directory: Path, archive: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Replay the archive, expect a refusal that changes nothing, and return the error message."""
    before = snapshot(directory.parent)
    code = run_cli(group, ["replay", str(archive), "--into", "restored"])
    error_output = capsys.readouterr().err
    assert code in (2, 3), error_output
    assert "Traceback" not in error_output and "fault in autoqec" not in error_output
    assert snapshot(directory.parent) == before
    return error_output


# ---- commands


@pytest.mark.parametrize(
    "ref",
    [
        "--upload-pack=touch {victim} #",
        "--output={victim}",
        "-h",
        "--exec=touch {victim}",
        "ext::sh -c touch% {victim}",
        f"refs/heads/exp/{RUN}/01-x:refs/heads/exp/{RUN}/02-x",
        f"refs/heads/exp/{RUN}/--upload-pack=touch {{victim}}",
        f"refs/heads/exp/{RUN}/01-..",
        f"refs/heads/exp/{RUN}/01-x.lock",
        f"refs/heads/exp/{RUN}/01-x\n",
        "refs/heads/exp/20200101-000000/01-other-run",
        "refs/heads/main",
        "refs/replace/" + "0" * 40,
        "HEAD",
        "",
    ],
)
def test_ref_name_cannot_be_an_option_or_command(directory: Path, ref: str, capsys: pytest.CaptureFixture[str]) -> None:
    evil = HONEST.copy()
    victim = directory.parent / "home/PWNED"
    evil.manifest["refs"] = {**evil.manifest["refs"], ref.format(victim=victim): TIP}
    evil.members["branches.bundle"] = b"this is not a bundle"
    assert "refs" in refused(directory, evil.pack(directory / "evil.tar"), capsys)
    assert not victim.exists()


@pytest.mark.parametrize("oid", ["--all", "", "0" * 39, "g" * 40, "A" * 40, TIP + "\n", "HEAD", 7, None])
def test_object_ids_are_hexadecimal(directory: Path, oid: object, capsys: pytest.CaptureFixture[str]) -> None:
    for change in ({"refs": {PIN: oid}}, {"baseline_sha": oid}):
        evil = HONEST.copy()
        evil.manifest |= change
        assert "archive.json" in refused(directory, evil.pack(directory / "evil.tar"), capsys)


@pytest.mark.parametrize(
    "ref", ["-h", "--orphan", "../main", "main..x", "main.lock", "a b", "a\nb", "@{-1}", "HEAD", ".hidden", "x/", ""]
)
def test_branch_of_the_baseline_must_be_a_branch_name(
    directory: Path, ref: str, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = HONEST.copy()
    evil.manifest["baseline_ref"] = ref
    assert "baseline_ref" in refused(directory, evil.pack(directory / "evil.tar"), capsys)


@pytest.mark.parametrize(
    "bundle",
    [
        b"",
        b"this is not a bundle",
        b"# v2 git bundle\n",
        b"# v2 git bundle\n-" + b"0" * 40 + b" x\n\n",
        b"# v3 git bundle\n@filter=blob:none\n\n",
        b"# v3 git bundle\n@object-format=sha256\n\n",
        b"# v2 git bundle\n" + TIP.encode() + b" " + PIN.encode() + b"\n\nPACK\0\0\0\2\0\0\0\0",
    ],
)
def test_malformed_bundle_is_refused(directory: Path, bundle: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    evil = HONEST.copy()
    evil.members["branches.bundle"] = bundle
    assert "branches.bundle" in refused(directory, evil.pack(directory / "evil.tar"), capsys)


def test_repository_instead_of_a_bundle_is_not_fetched_from(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """git fetches from a bundle path as from a repository if it is a directory."""
    evil = HONEST.copy()
    bundle = evil.members.pop("branches.bundle")
    evil.members["branches.bundle/HEAD"] = bundle
    refused(directory, evil.pack(directory / "evil.tar"), capsys)


# ---- files outside the target


@pytest.mark.parametrize(
    "run_id",
    [
        "{home}",
        "../../home",
        "..",
        ".",
        "",
        "20260101-000000/../../../home",
        "20260101-000000\n",
        "２０２６０１０１-000000",
    ],
)
@pytest.mark.parametrize("member", [".bashrc", ".ssh/authorized_keys"])
def test_run_id_cannot_be_a_path(directory: Path, run_id: str, member: str, capsys: pytest.CaptureFixture[str]) -> None:
    evil = HONEST.copy()
    evil.manifest["run_id"] = run_id.format(home=directory.parent / "home")
    evil.members[f"run/{member}"] = b"theirs\n"
    assert "run_id" in refused(directory, evil.pack(directory / "evil.tar"), capsys)


@pytest.mark.parametrize(
    "name", ["runs", "runs/{run}", "runs/{run}/round_1", ".git", ".GIT", "git~1", "..", ".worktrees"]
)
def test_link_in_the_baseline_redirects_no_write(
    directory: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = name.format(run=RUN).split("/")
    home = str(directory.parent / "home").encode()

    def build(repo: Path) -> str:
        tree = tree_of(repo, [("120000", parts[-1], home)])
        for part in reversed(parts[:-1]):
            tree = tree_of(repo, [("40000", part, tree.encode())])
        return tree

    evil = with_baseline(HONEST, tmp_path / "build", build)
    evil.members["run/config"] = b"theirs\n"
    archive = evil.pack(directory / "evil.tar")
    before = snapshot(directory.parent)
    code = run_cli(group, ["replay", str(archive), "--into", "restored"])
    assert code in (0, 2), capsys.readouterr().err
    assert {
        path: content for path, content in snapshot(directory.parent).items() if not path.startswith("here/restored")
    } == before
    assert not any(path.is_symlink() for path in (directory / "restored").rglob("*"))


def test_links_and_filters_of_the_baseline_have_no_effect(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An attribute names a filter of the user's git configuration; a link is checked out as a text file."""
    pwned = directory.parent / "PWNED"
    settings = f'[filter "lfs"]\n\tsmudge = touch {pwned}\n\tclean = touch {pwned}\n\trequired = true\n'
    (directory.parent / "home/.gitconfig").write_text(settings)

    def build(repo: Path) -> str:
        entries = [("100644", ".gitattributes", b"* filter=lfs\n"), ("120000", "link", b"/etc/passwd")]
        return tree_of(repo, entries)

    evil = with_baseline(HONEST, tmp_path / "build", build)
    code = run_cli(group, ["replay", str(evil.pack(directory / "evil.tar")), "--into", "restored"])
    assert code == 0, capsys.readouterr().err
    assert not pwned.exists()
    link = directory / "restored/link"
    assert link.read_text() == "/etc/passwd" and not link.is_symlink()
    (directory.parent / "home/.gitconfig").unlink()
    git(directory / "restored", "checkout", "--", ".")
    assert not link.is_symlink()


@pytest.mark.parametrize(
    "entry",
    [
        special("run/link", tarfile.SYMTYPE, "/etc/passwd"),
        special("run/link", tarfile.LNKTYPE, "archive.json"),
        special("run/pipe", tarfile.FIFOTYPE),
        special("run/disk", tarfile.BLKTYPE),
        special("run/tty", tarfile.CHRTYPE),
        special("run/folder", tarfile.DIRTYPE),
        special("run/sparse", tarfile.GNUTYPE_SPARSE),
        special("run/tail", tarfile.CONTTYPE),
        special("archive.json", tarfile.REGTYPE),
        special("run/history.jsonl", tarfile.REGTYPE),
        special("run/unlisted", tarfile.REGTYPE),
    ],
    ids=lambda entry: f"{entry.name}-{entry.type.decode()}",
)
def test_only_regular_files_are_members(
    directory: Path, entry: tarfile.TarInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = HONEST.copy()
    evil.entries = [entry]
    refused(directory, evil.pack(directory / "evil.tar"), capsys)


@pytest.mark.parametrize(
    "name",
    [
        "/{home}/config",
        "../../home/config",
        "run/../../../home/config",
        "run/./config",
        "run//config",
        "run/",
        "run",
        "other/config",
        "run/.git/config",
        "run/sub/.GIT/config",
        "run/git~1/config",
        "run/a\\b",
        "run/a\nb",
        "run/a\x1b[2J",
        "run/\u202eb",
        "run/" + "d/" * 40 + "x",
        "run/" + "n" * 256,
        "run/secret",
        "run/owner.json",
        "run/live.json",
        "run/HISTORY.jsonl",
        "run/round_1/Config.yaml",
        "run/history.jsonl/x",
        "run/Round_1/x",
        "run/secret.hex/x",
        "run/round_4/artifact_manifest.json/x",
    ],
)
def test_member_names_are_plain(directory: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Absolute, with `..`, hidden, inside .git, of another process, or equal to another name in another case."""
    evil = HONEST.copy()
    evil.members[name.format(home=directory.parent / "home")] = b"theirs\n"
    error_output = refused(directory, evil.pack(directory / "evil.tar"), capsys)
    assert "\x1b" not in error_output and "\u202e" not in error_output


def test_no_member_appears_twice(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    honest = HONEST.copy()
    archive = honest.pack(directory / "evil.tar")
    with tarfile.open(archive, "r:") as tar:
        members = [(entry.name, tar.extractfile(entry).read()) for entry in tar]  # type: ignore[union-attr]
    twice = next(name for name, _ in members if name.endswith("config.yaml"))
    write_tar(archive, [*members, (twice, dict(members)[twice])])
    refused(directory, archive, capsys)


@pytest.mark.parametrize("name", ["../../../home/config", "/dev/zero", "{home}/config", "train/../x", ""])
def test_artifact_of_a_manifest_must_be_in_its_round(
    directory: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = HONEST.copy()
    manifest = json.loads(evil.members["run/round_1/artifact_manifest.json"])
    manifest["artifacts"][0]["name"] = name.format(home=directory.parent / "home")
    evil.members["run/round_1/artifact_manifest.json"] = json.dumps(manifest).encode()
    assert "artifact" in refused(directory, evil.pack(directory / "evil.tar"), capsys)


@pytest.mark.parametrize("change", [{"run_id": "20200101-000000"}, {"baseline_sha": "1" * 40}, {"baseline_ref": "x"}])
def test_run_in_the_archive_must_match_the_manifest(
    directory: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    evil = HONEST.copy()
    evil.members["run/run.json"] = json.dumps({**json.loads(evil.members["run/run.json"]), **change}).encode()
    assert "run.json" in refused(directory, evil.pack(directory / "evil.tar"), capsys)


def test_branch_of_a_row_must_belong_to_the_run(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = HONEST.copy()
    first, *following = evil.members["run/history.jsonl"].splitlines(keepends=True)
    row = {**json.loads(first), "branch": ".."}
    evil.members["run/history.jsonl"] = json.dumps(row).encode() + b"\n" + b"".join(following)
    assert "branch" in refused(directory, evil.pack(directory / "evil.tar"), capsys)


def test_untrusted_decoder_is_refused_before_branches_are_restored(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = HONEST.copy()  # closed, so that its verifications would be repeated
    evil.manifest["closed"], evil.members["run/secret.hex"] = True, b"0" * 64
    env = yaml.safe_load(evil.members["run/env.yaml"])
    evil.members["run/env.yaml"] = dump_config({**env, "baselines": ["mwpm", "sinter:os:abort:x"]}).encode()
    error_output = refused(directory, evil.pack(directory / "evil.tar"), capsys)
    assert "is not trusted" in error_output and "--trust-decoder os:abort" in error_output
    assert "Checking out" not in error_output


# ---- resources


def sparse(path: Path, size: int) -> Path:
    with path.open("ab") as stream:
        stream.truncate(size)
    return path


def declared(size: int) -> Callable[[Path], Path]:
    """Return a builder of an archive whose first member claims `size` bytes; the file is sparse."""

    def build(path: Path) -> Path:
        entry = tarfile.TarInfo("archive.json")
        entry.size = size
        path.write_bytes(entry.tobuf())
        return sparse(path, min(size, 2**33) + 1024)

    return build


def pax_header(path: Path) -> Path:
    entry = tarfile.TarInfo("x")
    entry.type, entry.size = tarfile.XHDTYPE, 2**32
    path.write_bytes(entry.tobuf())
    return sparse(path, 2**32 + 1024)


def nested(path: Path) -> Path:
    return HONEST.copy().seal(path, b"[" * 10**5)


def huge_number(path: Path) -> Path:
    return HONEST.copy().seal(path, b'{"run_id": ' + b"9" * 10**5 + b"}")


def many(path: Path) -> Path:
    return write_tar(path, ((f"run/{number}", b"") for number in range(3000)))


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    "build",
    [declared(2**40), declared(2**33), declared(2**28), pax_header, nested, huge_number, many, pipe, Path.mkdir]
)  # fmt: skip
def test_sizes_and_counts_are_bounded(
    directory: Path, build: Callable[[Path], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    build(directory / "evil.tar")
    code = run_cli(group, ["replay", "evil.tar", "--into", "restored"])
    error_output = capsys.readouterr().err
    assert code == 2 and "Traceback" not in error_output, error_output
    assert [path.name for path in directory.iterdir()] == ["evil.tar"]


def exponential(repo: Path) -> str:
    """2**40 files in a tree of a few hundred bytes."""
    tree = tree_of(repo, [("100644", "a", b"x"), ("100644", "b", b"x")])
    for _ in range(40):
        tree = tree_of(repo, [("40000", "a", tree.encode()), ("40000", "b", tree.encode())])
    return tree


def inflating(repo: Path) -> str:
    """Half a gibibyte of zeros, packed into half a mebibyte."""
    return tree_of(repo, [("100644", "zeros", bytes(2**29))])


def deep(repo: Path) -> str:
    tree = tree_of(repo, [("100644", "a", b"x")])
    for _ in range(200):
        tree = tree_of(repo, [("40000", "a", tree.encode())])
    return tree


@pytest.mark.parametrize("build", [exponential, inflating, deep])
def test_exponentially_large_tree_is_not_checked_out(
    directory: Path, build: Callable[[Path], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = with_baseline(HONEST, tmp_path / "build", build)
    assert "branches.bundle" in refused(directory, evil.pack(directory / "evil.tar"), capsys)


# ---- messages and remains


def test_nothing_is_written_before_everything_is_checked(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last check fails: not even an empty directory remains."""
    evil = HONEST.copy()
    manifest = json.loads(evil.members["run/round_3/artifact_manifest.json"])
    manifest["artifacts"][0]["sha256"] = "0" * 64
    evil.members["run/round_3/artifact_manifest.json"] = json.dumps(manifest).encode()
    assert "round_3" in refused(directory, evil.pack(directory / "evil.tar"), capsys)


def test_replay_announces_its_steps_first(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_cli(group, ["replay", str(HONEST.copy().pack(directory / "honest.tar")), "--into", "restored"])
    error_output = capsys.readouterr()
    assert code == 0
    assert (
        RUN in error_output.err
        and HONEST.manifest["baseline_sha"] in error_output.err
        and "branch code" in error_output.err
    )
    assert sorted(path.name for path in directory.iterdir()) == ["honest.tar", "restored"]
