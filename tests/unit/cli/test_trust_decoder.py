"""External decoders that an env names, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Workspace

NAMED = "baselines: [mwpm, mwpm_correlated"
MODULE = """
from pathlib import Path
Path({marker!r}).touch()

def decoders():
    Path({marker!r}).touch()
    return {{}}
"""


def env_naming(workspace: Workspace, decoder: str) -> str:
    text = (workspace.root / "env.yaml").read_text(encoding="utf-8")
    assert NAMED in text
    path = workspace.root.parent / "named.yaml"
    path.write_text(text.replace(NAMED, f'{NAMED}, "{decoder}"'), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("decoder", ["sinter:os:abort:x", "sinter:os:getpid:x", "sinter:local_module:decoders:x"])
def test_env_alone_runs_no_code(workspace: Workspace, decoder: str) -> None:
    marker = workspace.root.parent / "marker"
    (workspace.root / "local_module.py").write_text(MODULE.format(marker=str(marker)))
    env = env_naming(workspace, decoder)
    shown = workspace.autoqec("run", env, "--profile", "smoke", "--dry-run", PYTHONPATH="")
    assert shown.code == 2 and "--trust-decoder " + ":".join(decoder.split(":")[1:3]) in shown.err
    assert "Traceback" not in shown.err and len(shown.err.strip().splitlines()) <= 2
    assert not marker.exists()


def test_trusted_decoder_of_the_current_directory_is_not_found(workspace: Workspace) -> None:
    marker = workspace.root.parent / "marker"
    (workspace.root / "local_module.py").write_text(MODULE.format(marker=str(marker)))
    env = env_naming(workspace, "sinter:local_module:decoders:x")
    trusted = ("--trust-decoder", "local_module:decoders")
    shown = workspace.autoqec("run", env, "--profile", "smoke", "--dry-run", *trusted, PYTHONPATH=str(workspace.root))
    assert shown.code == 2 and "is not installed" in shown.err and not marker.exists()


def test_trusted_decoder_runs_without_rights_of_the_user(workspace: Workspace, tmp_path: Path) -> None:
    """An installed module that the user trusts is imported, but writes nowhere outside its sandbox."""
    site, marker = tmp_path / "site", tmp_path / "marker"
    site.mkdir()
    (site / "installed_module.py").write_text(MODULE.format(marker=str(marker)))
    env = env_naming(workspace, "sinter:installed_module:decoders:x")
    trusted = ("--trust-decoder", "installed_module:decoders")
    shown = workspace.autoqec("run", env, "--profile", "smoke", "--dry-run", *trusted, PYTHONPATH=str(site))
    assert shown.code == 2 and "Error" in shown.err and "Traceback" not in shown.err
    assert not marker.exists()


@pytest.mark.parametrize(
    "command",
    [("run", "env.yaml", "--dry-run"), ("verify", "x"), ("replay", "x.tar"), ("adopt", "r", "1"), ("add-env", "n")],
    ids=lambda command: command[0],
)
def test_malformed_trust_is_refused_everywhere(workspace: Workspace, command: tuple[str, ...]) -> None:
    shown = workspace.autoqec(*command, "--trust-decoder", "module-only")
    assert shown.code == 2 and "MODULE:FUNCTION" in shown.err and "Traceback" not in shown.err
