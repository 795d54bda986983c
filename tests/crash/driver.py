"""Start a run in a process that a test may kill: `python -m tests.crash.driver WORKSPACE ROUNDS [RUN_ID] [CASE…]`.

Cases: `nominate` (every ok round is nominated for verification, otherwise none), `bad` (configs that do not compile),
`compose` and `conflict` (round 3 composes rounds 1 and 2, which changed different keys, or the same one), `outside`
(an edit outside the editable modules), `unreadable` (a config file that is not YAML), `parallel` (two concurrent
rounds), `search` (the default ideator), `slurm` (one job per round; `slurm=KEY=VALUE`: its options;
`container=IMAGE`), `endless` (a network that sleeps), `endless_second` (that of round 2 sleeps).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from autoqec.contracts.dsl import flatten, unflatten
from autoqec.contracts.messages import AnalystResponse, CoderResponse, FileEdit, IdeatorResponse
from autoqec.contracts.views import AnalystView, CoderView, IdeatorView
from autoqec.errors import AutoqecError
from autoqec.extensions.slurm import submission as slurm
from autoqec.extensions.slurm.container import open_image
from autoqec.extensions.slurm.executor import SlurmExecutor
from autoqec.extensions.slurm.jobs import Polling
from autoqec.ideators import coder, space, tpe
from autoqec.ideators.analyst import analyse
from autoqec.ideators.search_state import ABORTED_STATUSES
from autoqec.orchestrator.failpoint import FAILPOINT_VARIABLE
from autoqec.orchestrator.loop import run_rounds
from autoqec.orchestrator.run import Roles
from autoqec.store.files import dump_config
from autoqec.store.layout import EDITABLE_MODULES
from tests.crash import interference
from tests.support.starts import resume_run, start_run

ROOT = Path(__file__).parents[2]
SECRET = b"a fixed secret, used only in tests"
View = dict[str, Any]
BASELINE = space.TEMPLATES[0].config


def nominate(view: AnalystView, verdict: str = "candidate") -> AnalystResponse:
    response = analyse(view)
    ok = json.loads(view.metrics_path.read_bytes())["status"] == "ok"
    return response.model_copy(update={"verdict": verdict if ok else "ignore"})


def changed(**keys: Any) -> dict[str, Any]:
    """Return the baseline's config with other values at dotted keys."""
    flat = flatten(BASELINE) | {key.replace("__", "."): value for key, value in keys.items()}
    return unflatten(flat)


def scripted(cases: set[str], view: IdeatorView) -> IdeatorResponse:
    """Propose small networks forked from the baseline; with `compose` or `conflict` every third merges two."""
    done = [row for row in view.history if row["status"] not in ABORTED_STATUSES]
    number = len(done) + len(view.pending) + 1
    config, fork_from, mode = changed(mlp__hidden=4 + number, training__finetune_share=0.0), "baseline", None
    if "bad" in cases:
        config = changed(mlp__inputs="nonsense")
    if "compose" in cases and number % 3 == 2:
        config = changed(training__batch_size=1024)
    if cases & {"compose", "conflict"} and number % 3 == 0:
        fork_from, mode = tuple(row["branch"] for row in done[-2:]), "pure"
    return IdeatorResponse.model_validate(
        {"hypothesis": f"net {number}", "slug": "net", "fork_from": fork_from, "compose_mode": mode, "proposal": config}
    )


def outside(view: CoderView) -> CoderResponse:
    response = coder.code(view)
    return response.model_copy(update={"edits": (*response.edits, FileEdit(path="../../../setup.py", text="x = 1\n"))})


def unreadable(view: CoderView) -> CoderResponse:
    edit = FileEdit(path="predecoder.yaml", text="type: [never closed\n")
    return literal(view).model_copy(update={"edits": (edit,)})


def endless(view: CoderView) -> CoderResponse:
    response, line = literal(view), "        x = detections[:, self.index]\n"
    text = (ROOT / EDITABLE_MODULES / "mlp.py").read_text(encoding="utf-8")
    assert line in text
    edit = FileEdit(path="mlp.py", text=text.replace(line, f"{line}        __import__('time').sleep(600)\n"))
    return response.model_copy(update={"edits": (*response.edits, edit)})


def endless_second(view: CoderView) -> CoderResponse:
    return endless(view) if view.hypothesis == "net 2" else literal(view)


def literal(view: CoderView) -> CoderResponse:
    """Return the proposal unchanged, valid or not; the Runner must handle it."""
    text = dump_config(view.proposal)
    if os.environ.get(FAILPOINT_VARIABLE) in ("branched", "edited"):
        text += "# $Id$\n"  # which git may convert, so that worktree and commit are made in steps
    edits = () if view.compose_mode == "pure" else (FileEdit(path="predecoder.yaml", text=text),)
    return CoderResponse(dsl_config=view.proposal, edits=edits, commit_message=view.hypothesis)


def cluster(cases: set[str], slots: int) -> SlurmExecutor | None:
    """Return a SLURM executor that polls more often than a real cluster would allow."""
    if "slurm" not in cases:
        return None
    named = [case.removeprefix("slurm=") for case in cases if case.startswith("slurm=")]
    options = {"mem": "1G", **slurm.parse_options(named)}
    images = [open_image(Path(case.removeprefix("container="))) for case in cases if case.startswith("container=")]
    image = images[0] if images else None
    return SlurmExecutor(slots, options, image=image, polling=Polling(0.05, 0.3, 1.0))


def main(
    workspace: Path, rounds: int, run_id: str, cases: set[str], analyst: Callable[[View], Any] | None = None
) -> int:
    """Start the run and return the exit status."""
    ideator = tpe.propose if "search" in cases else (lambda view: scripted(cases, view))
    coders = {"outside": outside, "unreadable": unreadable, "endless": endless, "endless_second": endless_second}
    analyst = analyst or (nominate if "nominate" in cases else partial(nominate, verdict="ignore"))
    coder_of = next((coders[case] for case in coders if case in cases), literal)
    roles = Roles(ideator, coder=coder_of, analyst=interference.with_interference(analyst, cases))
    try:
        slots = 2 if "parallel" in cases else 1
        if run_id:
            run = resume_run(run_id, workspace, roles=roles)
        else:
            secret = workspace.parent / "secret"
            secret.write_bytes(SECRET)
            chosen = {"secret_file": secret, "parallel": slots}
            run = start_run(workspace / "env.yaml", workspace, "smoke", 1, "tpe", roles=roles, **chosen)
        with run:
            run_rounds(run, rounds, executor=cluster(cases, slots))
    except AutoqecError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    workspace, rounds, *rest = sys.argv[1:]
    sys.exit(main(Path(workspace), int(rounds), rest[0] if rest else "", set(rest[1:])))
