"""`--pin` with every ideator: the planned round, its branch and its row keep the pins; a resumed run keeps its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.events import ignore
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.pins import apply_pins
from autoqec.errors import UsageError
from autoqec.extensions.language_models.roles.view_text import format_ideator_view
from autoqec.orchestrator.plugin_protocols import ideator_names
from autoqec.orchestrator.rounds import start_round
from autoqec.orchestrator.run import Roles
from autoqec.orchestrator.run_checks import check
from autoqec.orchestrator.run_options import parse_pins, request_run
from autoqec.orchestrator.session import open_run
from autoqec.store import files
from autoqec.store.history import History
from autoqec.store.layout import EDITABLE_CONFIG, RunLayout
from tests.conftest import Workspace
from tests.support import rounds
from tests.support.shown import check_error
from tests.support.starts import start_run

GNN = PredecoderDSL.model_validate({"type": "gnn", "gnn": {"hidden": 11}}).config()
PINS = ("type=mlp", "mlp.depth=3", "training.loop=async", "training.replay.ratio=0.5")
EDIT = "def weight():\n    return 1\n"


def scripted(folder: Path) -> str:
    """Return a model whose proposals and code violate the pins of the run."""
    replies = [
        {
            "when": "Propose the next round",
            "say": {"hypothesis": "messages", "slug": "gnn", "fork_from": [], "proposal": GNN},
        },
        {
            "when": "Write the config",
            "say": {"dsl_config": GNN, "edits": [{"path": "more.py", "text": EDIT}], "commit_message": "as I like it"},
        },
    ]
    path = folder / "said.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in replies), encoding="utf-8")
    return f"scripted:{path}"


def options_of(name: str, workspace: Workspace, folder: Path) -> dict[str, object]:
    if name == "replay":
        older = RunLayout(workspace.root, rounds.RUN_ID)
        older.round(1).dir.mkdir(parents=True)
        History(older).write_info(rounds.info())
        History(older).append_row(rounds.row(1, dsl_config=GNN))
        return {"replay_of": rounds.RUN_ID}
    return {"model": scripted(folder), "open_modules": name == "llm"} if name in ("llm", "hybrid") else {}


@pytest.mark.parametrize("name", ideator_names())
def test_planned_round_keeps_the_pins(
    name: str, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.root)
    given = {"ideator": name, "pin": PINS, "profile": "smoke", **options_of(name, workspace, tmp_path)}
    pins = parse_pins(PINS)
    with open_run(check(request_run("env.yaml", given)), ignore) as run:
        opened = start_round(run, ignore)
        planned, worktree = opened.planned, run.layout.worktree(opened.planned.branch)
        assert opened.row is None, opened.row
        config = files.load_yaml((worktree / EDITABLE_CONFIG).read_text(encoding="utf-8"), location="branch")
        assert config == planned.dsl_config == apply_pins(config, pins)
        assert (config["type"], config["mlp"]["depth"], config["training"]["replay"]["ratio"]) == ("mlp", 3, 0.5)
        assert planned.ideator.proposal == apply_pins(planned.ideator.proposal, pins)
        assert planned.ideator.source.endswith(
            "pinned type=mlp, mlp.depth=3, training.loop=async, training.replay.ratio=0.5"
        )
        assert run.memory.history.info().pins == pins
        if name == "llm":
            code = worktree / Path(EDITABLE_CONFIG).parent / "more.py"
            assert code.read_text(encoding="utf-8") == EDIT, "the Coder's code stays"
            prompt = format_ideator_view(run.memory.l2_for_ideator(run.env, run.baseline_config))
            assert "training.replay.ratio: 0.5" in prompt, "the prompt lists the pins"
        run.memory.rebuild_views()
        assert "Pinned in every proposal: type=mlp, mlp.depth=3, " in run.layout.log.read_text(encoding="utf-8")


def test_reply_incompatible_with_the_pins_fails_the_round(workspace: Workspace) -> None:
    bp = PredecoderDSL.model_validate({"type": "neural_bp", "neural_bp": {}}).config()
    reply = IdeatorResponse(hypothesis="unrolled", slug="bp", proposal=bp)
    roles = Roles(lambda view: reply)
    with start_run(
        workspace.root / "env.yaml", workspace.root, "smoke", roles=roles, pins=parse_pins(["head=mlp_small"])
    ) as run:
        row = start_round(run, ignore).row
        assert row is not None and row.status == "compile_error"
        assert "has no hidden features for a head" in str(row.status_reason)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["training.loop"], "'training.loop' is not KEY=VALUE"),
        (["=async"], "is not KEY=VALUE"),
        (["training.loop="], "is not KEY=VALUE"),
        (["type=mlp", "type=gnn"], "`type` is pinned twice"),
        (["training.loop=[async"], "--pin training.loop"),
        (["training.loop=null"], "field `training.loop`"),
    ],
)
def test_invalid_pin_is_refused_with_an_example(texts: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        parse_pins(texts)
    assert error.value.hint and "\n" not in str(error.value)


def test_pin_values_have_the_syntax_of_the_config() -> None:
    pins = parse_pins(["type=gnn", "gnn.residual=false", "gnn.normalization=none", "training.learning_rate=1e-3"])
    assert pins == {
        "type": "gnn", "gnn.residual": False, "gnn.normalization": "none", "training.learning_rate": 1e-3,
    }  # fmt: skip


def test_invalid_pin_writes_nothing_and_dry_run_shows_valid_pins(workspace: Workspace) -> None:
    before = workspace.files()
    result = workspace.autoqec("run", "env.yaml", "--pin", "training.lop=async")
    assert result.code == 2 and not result.out
    assert result.err.startswith("error: --pin: unknown key `training.lop`\nhint: perhaps training.loop, ")
    check_error(result.err)
    plan = workspace.autoqec("run", "env.yaml", "--dry-run", "--json", "--pin", "training.loop=sync")
    assert plan.code == 0 and json.loads(plan.out)["pins"] == {"training.loop": "sync"}
    assert "pinned    training.loop=sync, in every proposal" in plan.err
    assert workspace.files() == before


def test_resumed_run_keeps_its_pins(workspace: Workspace) -> None:
    with start_run(
        workspace.root / "env.yaml", workspace.root, "smoke", 1, pins=parse_pins(["training.loop=sync"])
    ) as run:
        name = run.info.run_id
    for named in ([], ["--pin", "training.loop=sync"]):
        plan = workspace.autoqec("run", "--resume", name, "--dry-run", "--json", *named)
        assert plan.code == 0 and json.loads(plan.out)["pins"] == {"training.loop": "sync"}
    other = workspace.autoqec("run", "--resume", name, "--dry-run", "--pin", "training.loop=async")
    assert other.code == 2
    assert (
        f"--pin training.loop=async: the run was started with training.loop=sync\nhint: autoqec run --resume {name}"
        in other.err
    )
