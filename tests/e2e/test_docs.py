"""Commands in the docs work, and every link in them resolves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "index.md", DOCS / "tutorial.md", *sorted((DOCS / "how-to").glob("*.md"))]
BOX = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = "<!-- not run by the tests: "


def code_blocks(page: Path) -> str:
    return "".join(BOX.findall(page.read_text(encoding="utf-8")))


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in PAGES if code_blocks(page)], ids=lambda page: page.stem)
def test_commands_of_a_page_work(page: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    stim = "import stim, sys; sys.exit(stim.main(command_line_args=sys.argv[1:]))"
    sinter = "from sinter._command._main import main; import sys; sys.exit(main())"
    for name, call in (("autoqec", "-m autoqec.cli"), ("stim", f"-c '{stim}'"), ("sinter", f"-c '{sinter}'")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -P {call} "$@"\n', encoding="utf-8")
        (tools / name).chmod(0o755)
    inherited = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
    env = {**inherited, "HOME": str(tmp_path), "PATH": f"{tools}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    directory = tmp_path / "work"
    directory.mkdir()
    script = f"set -euo pipefail\n{code_blocks(page)}"
    done = subprocess.run(["bash", "-c", script], cwd=directory, env=env, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "fault in autoqec" not in done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_code_block_is_run_or_has_a_reason_not_to(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for before, language in re.findall(r"^(.*)\n```(\w*)\n(?:.*\n)*?```$", text, re.MULTILINE):
        assert language in ("sh", "python") or before.startswith(NOT_RUN), before


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.stem
)
def test_python_code_blocks_run(page: Path) -> None:
    code = "".join(re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
