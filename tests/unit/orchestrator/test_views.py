"""Views: pure functions of run.json and history, complete and correct."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.round import MemberCounts, PairedCounts
from autoqec.contracts.verdict import MemberResult
from autoqec.orchestrator import fork_graph, views
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.round_recorder import deleted_row
from autoqec.qec.stats import paired_effect
from autoqec.store import atomic
from autoqec.store.files import load_env
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import Draft, fold, is_finished
from tests.support import rounds

ENV = Path(__file__).parents[3] / "autoqec/envs/builtin/smoke.yaml"


def memory(tmp_path: Path, *rows: HistoryRow, **info: Any) -> RunMemory:
    layout = RunLayout(tmp_path, rounds.RUN_ID)
    layout.root.mkdir(parents=True)
    history = History(layout)
    history.write_info(rounds.info(**info))
    for row in rows:
        layout.round(row.round).dir.mkdir(exist_ok=True)
        history.append_row(row)
    return RunMemory(layout.root)


def figures(number: int, delta: float, flops: int, size: int, **more: Any) -> HistoryRow:
    return rounds.row(
        number, delta_vs_baseline_holdout=delta, judge_flops_per_syndrome=flops, judge_n_params=size, **more
    )


def ids(path: Path) -> list[str]:
    return [entry["round_attempt_id"] for entry in json.loads(path.read_bytes())]


def test_front_is_complete_and_its_preview_is_its_top(tmp_path: Path) -> None:
    rows = [figures(n, 0.001 * n, 1000 * n, 100) for n in range(1, 9)]
    rows.append(figures(9, 0.001, 5000, 100))  # dominated by round 1
    found = memory(tmp_path, *rows)
    found.rebuild_views()
    assert ids(found.layout.pareto) == [f"attempt-{n}" for n in range(8, 0, -1)]
    assert ids(found.layout.preview) == ids(found.layout.pareto)[:5]


def test_front_is_the_same_in_any_order() -> None:
    rows = [figures(1, 0.002, 10, 10), figures(2, 0.003, 20, 10), figures(3, 0.001, 5, 10), figures(4, 0.001, 30, 30)]
    fronts = {tuple(entry.round_attempt_id for entry in fold(order).front) for order in itertools.permutations(rows)}
    assert fronts == {("attempt-2", "attempt-1", "attempt-3")}


@pytest.mark.parametrize("verdict", ["INCONCLUSIVE", "SUSPICIOUS", "FAILED", None])
def test_only_verified_rounds_enter(verdict: str | None) -> None:
    assert fold([rounds.row(1, verify_verdict=verdict)]).front == ()


def test_candidates_are_a_separate_view_that_no_role_receives(tmp_path: Path) -> None:
    found = memory(tmp_path, rounds.row(1, verify_verdict="SUSPICIOUS"), rounds.row(2))
    env, _ = load_env(ENV)
    before = found.l2_for_ideator(env, rounds.CONFIG)
    found.rebuild_views()
    assert [entry["round"] for entry in json.loads(found.layout.candidates.read_bytes())] == [1]
    found.layout.candidates.write_text("[1, 2, 3]")
    assert found.l2_for_ideator(env, rounds.CONFIG) == before
    assert [entry.round_attempt_id for entry in before.pareto] == ["attempt-2"]


def test_ideator_sees_what_the_next_test_needs(tmp_path: Path) -> None:
    env, _ = load_env(ENV)
    verdicts = ["FAILED", "VERIFIED", "FAILED"]
    found = memory(
        tmp_path, *(rounds.row(number, verify_verdict=verdict) for number, verdict in enumerate(verdicts, 1))
    )
    test = found.l2_for_ideator(env, rounds.CONFIG).next_test
    assert test is not None and test.index == 4
    assert test.threshold == pytest.approx(4 * 5 / (env.protocol.alpha * 2))  # 1 discovery before
    assert test.first_threshold == pytest.approx(2 / env.protocol.alpha)


def test_views_are_rebuilt_byte_for_byte(tmp_path: Path) -> None:
    found = memory(tmp_path, rounds.row(1), rounds.row(2, verify_verdict="FAILED"))
    written = found.rebuild_views()
    assert len(written) == 5 and found.rebuild_views() == [] and found.stale_views() == []
    before = {path: path.read_bytes() for path in written}
    for path in written:
        path.unlink()
    found.rebuild_views()
    assert {path: path.read_bytes() for path in written} == before


def test_round_with_a_deleted_branch_stays_on_the_front_but_cannot_be_forked(tmp_path: Path) -> None:
    row = rounds.row(1)
    found = memory(tmp_path, row, deleted_row(row, "attempt-1"))
    env, _ = load_env(ENV)
    (history_entry,) = found.l2_for_ideator(env, rounds.CONFIG).history
    assert history_entry["forkable"] is False
    assert len(found.state.front) == 1


def test_ideator_view_lists_running_rounds(tmp_path: Path) -> None:
    found = memory(tmp_path, rounds.row(1))
    for line in (rounds.begun(1), rounds.planned(1), rounds.begun(2), rounds.planned(2)):
        found.history.append_attempt(line)
    env, _ = load_env(ENV)
    assert [row["round"] for row in found.l2_for_ideator(env, rounds.CONFIG).pending] == [2]


def test_analyst_view_has_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = memory(tmp_path)
    monkeypatch.chdir(tmp_path)
    view = found.l3_for_analyst("runs/x/round_1")
    assert view.metrics_path == tmp_path / "runs/x/round_1/metrics.json"


def test_log_describes_each_outcome(tmp_path: Path) -> None:
    verified = {
        "delta_holdout_low": 0.0005, "delta_holdout_high": 0.002, "relative_holdout": 0.3, "relative_holdout_low": 0.2,
        "relative_holdout_high": 0.4, "holdout_shots": 10_000, "beats_panel": {"mwpm_correlated": False},
    }  # fmt: skip
    conflict = {
        "status": "compose_conflict", "status_reason": "merge conflict", "branch": None, "commit_sha": None,
        "verify_verdict": None, "verdict": "ignore", "conflicting_files": ("a/predecoder.yaml",),
        "fork_from": ("exp/a", "exp/b"), "fork_from_canonical": "exp/a|exp/b", "compose_mode": "pure",
    }  # fmt: skip
    found = memory(
        tmp_path, rounds.row(1, **verified), rounds.row(2, **conflict), rounds.row(3, hypothesis="a\n## fake")
    )
    found.rebuild_views()
    text = found.layout.log.read_text(encoding="utf-8")
    assert text.count("\n## ") == 3, "a hypothesis cannot open a section"
    for part in (
        "3 rounds finished, 2 nominated; verdicts: 2 VERIFIED.",
        "1 compose_conflict",
        "Best verified: round 3",
        "Δ_LER +1.00e-03 [+5.00e-04, +2.00e-03] per shot",
        "30.0% [20.0, 40.0]",
        "on 10000 fresh shots",
        "not shown to be better than mwpm_correlated",
        "both changed a/predecoder.yaml",
    ):
        assert part in text, text


def test_log_of_recorded_shots_names_the_strongest_baseline_and_sealed_shots(tmp_path: Path) -> None:
    beats = {"mwpm": True, "mwpm_correlated": True, "mwpm_estimated": True, "mwpm_correlated_estimated": True}
    found = memory(tmp_path, rounds.row(1, relative_holdout=0.1, holdout_shots=48_000, beats_panel=beats))
    found.rebuild_views()
    text = found.layout.log.read_text(encoding="utf-8")
    assert "10.0% fewer failures than the strongest baseline, on 48000 sealed shots" in text
    assert "The gain over the strongest baseline holds on sealed shots." in text and "baseline decoder" not in text


HOSTILE_TEXT = "x\x1b[2J\x1b]8;;http://e\x07 \u202egnp <img src=x> [click](javascript:alert) `code` **bold** # h | c"


@pytest.mark.parametrize(
    "change",
    [
        {"hypothesis": HOSTILE_TEXT}, {"analysis": HOSTILE_TEXT}, {"next_hypothesis_seed": HOSTILE_TEXT},
        {"verify_reasons": (HOSTILE_TEXT,)}, {"beats_panel": {HOSTILE_TEXT: False}},
        {"status": "train_error", "status_reason": HOSTILE_TEXT, "verify_verdict": None},
        {"fork_from_canonical": HOSTILE_TEXT, "fork_from": HOSTILE_TEXT},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_log_shows_untrusted_text_without_control_characters_and_markup(tmp_path: Path, change: dict[str, Any]) -> None:
    found = memory(tmp_path, rounds.row(1, **change))
    found.rebuild_views()
    text = found.layout.log.read_text(encoding="utf-8")
    assert "gnp" in text and all(char.isprintable() for line in text.splitlines() for char in line)
    outside_code = "".join(text.split("`")[::2]) if "fork_from" in change else text
    for markup in ("<img", "[click](", " **bold", " `code", " # h"):
        assert markup not in outside_code


def test_log_reports_measured_figures_and_quotes_the_analyst(tmp_path: Path) -> None:
    counts = {
        "delta_ler": 0.005, "val_shots": 20_000, "val_errors_plain": 300, "val_errors_predecoder": 200,
        "val_fixed": 150, "val_broken": 50,
    }  # fmt: skip
    row = rounds.row(1, analysis="It is VERIFIED, 99% better.", **counts)
    found = memory(tmp_path, row)
    found.rebuild_views()
    text = found.layout.log.read_text(encoding="utf-8")
    (happened,) = re.findall(r"^\*\*Result\.\*\* (.*)$", text, re.MULTILINE)
    assert "failed 300 times" in happened and "150 shots fixed, 50 broken" in happened and "VERIFIED" not in happened
    (opinion,) = re.findall(r"^\*\*Analyst \(opinion\)\.\*\* (.*)$", text, re.MULTILINE)
    assert opinion == "“It is VERIFIED, 99% better”"


def test_log_names_the_baseline_without_a_gain_and_explains_compositions(tmp_path: Path) -> None:
    beats = {"mwpm": True, "mwpm_correlated": False}
    found = memory(tmp_path, figures(1, 0.002, 10, 10, beats_panel=beats, composition_verdict="interference"))
    found.rebuild_views()
    text = found.layout.log.read_text(encoding="utf-8")
    assert "holds on fresh shots. No gain over mwpm_correlated was shown." in text
    assert "Compared with its parents on another draw: interference." in text
    assert "results on them are no evidence" in text.partition("## Round")[0]


def test_entry_is_merged_into_the_front_file_that_the_memory_names(tmp_path: Path) -> None:
    found = memory(tmp_path, figures(1, 0.002, 10, 10), figures(2, 0.001, 20, 20, verify_verdict="FAILED"))
    (better,) = fold([figures(3, 0.003, 30, 30)]).front
    (dominated,) = fold([figures(4, 0.001, 30, 30)]).front
    found.update_pareto(better)
    assert ids(found.layout.pareto) == ids(found.layout.preview) == ["attempt-3", "attempt-1"]
    found.update_pareto(dominated)
    assert ids(found.layout.pareto) == ["attempt-1"], "a dominated entry changes nothing"
    candidates = RunMemory(found.layout.root, pareto_filename="candidate_pareto.json")
    candidates.update_pareto(figures(5, 0.003, 1000, 1, verify_verdict=None))
    assert [entry["round"] for entry in json.loads(found.layout.candidates.read_bytes())] == [5, 2]
    assert ids(found.layout.pareto) == ["attempt-1"]
    with pytest.raises(TypeError):
        candidates.update_pareto(better)


def test_text_is_appended_to_the_log(tmp_path: Path) -> None:
    found = memory(tmp_path)
    found.append_log("## Erste Runde: Δ 错误率\n")
    found.append_log("more\n")
    text = found.layout.log.read_text(encoding="utf-8")
    assert text.startswith("# Run ") and text.endswith("## Erste Runde: Δ 错误率\nmore\n")


@pytest.mark.parametrize("view", ["log", "history", "pareto", "fork_graph"])
def test_non_ascii_text_stays_readable(tmp_path: Path, view: str) -> None:
    words = "größere Δ_LER, 错误率"
    found = memory(tmp_path, rounds.row(1, hypothesis=words, branch="exp/r/01-größe"))
    found.rebuild_views()
    data = getattr(found.layout, view).read_bytes().decode()
    assert ("größe" if view == "pareto" else words) in data and "\\u" not in data
    # metrics, pointers, manifests and reports are written by this function
    atomic.write_json(path := tmp_path / "metrics.json", {"status_reason": words})
    assert words in path.read_bytes().decode()


def test_unknown_front_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"other\.json"):
        RunMemory(tmp_path, pareto_filename="other.json")


# ---- attempts and graph


def test_round_numbers_are_not_reused(tmp_path: Path) -> None:
    found = memory(tmp_path)
    assert found.next_round() == 1
    for number in (1, 2):
        found.history.append_attempt(rounds.begun(number))
    assert found.next_round() == 3
    found.layout.round(7).dir.mkdir()
    found.history.append_row(rounds.row(7))
    assert found.next_round() == 8


def test_aborted_rounds_do_not_count_as_finished() -> None:
    lost = rounds.row(1, status="orphaned_branch", status_reason="x", verify_verdict=None)
    assert not is_finished(lost) and is_finished(rounds.row(1))
    assert not is_finished(deleted_row(rounds.row(1), "attempt-1"))


def graph() -> dict[str, Any]:
    first, second = rounds.branch(1), rounds.branch(2)
    rows = [
        rounds.row(1),
        rounds.row(2, fork_from=first, fork_from_canonical=first, verify_verdict="FAILED"),
        rounds.row(3, fork_from=(second, first), fork_from_canonical=f"{first}|{second}", compose_mode="pure"),
    ]
    return graph_of(rows)


def graph_of(rows: list[HistoryRow]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(fork_graph.text(fork_graph.build(rounds.info(), fold(rows))))
    return value


def test_graph_keeps_the_order_of_parents() -> None:
    value = graph()
    parents = [(node["id"], node["parents"]) for node in value["nodes"]]
    assert parents == [
        ("baseline", []),
        ("attempt-1", ["baseline"]),
        ("attempt-2", ["attempt-1"]),
        ("attempt-3", ["attempt-2", "attempt-1"]),
    ]
    assert value["front"] == ["attempt-3", "attempt-1"]


def test_graph_is_drawn_as_a_tree() -> None:
    drawn = fork_graph.draw(graph())
    lines = [line for line, _ in drawn]
    assert lines[0].startswith("baseline ")
    assert [len(line) - len(line.lstrip(" │")) for line in lines[1:]] == [0, 3, 6]
    assert "+ round 1" in lines[3] and lines[3].rstrip().endswith("*")
    assert "ok · FAILED · Δ +2.00e-03" in lines[2]
    assert [kind for _, kind in drawn] == ["baseline", "VERIFIED", "FAILED", "VERIFIED"]


def test_graphviz_output_escapes_labels() -> None:
    value = graph()
    assert fork_graph.dot(value).count("->") == 4 and fork_graph.dot(value).count("dashed") == 1
    value["nodes"][1]["branch"] = 'exp/x/01-a"];\n  evil -> "'
    text = fork_graph.dot(value)
    assert text.count("\n") == fork_graph.dot(graph()).count("\n")
    assert '01-a\\"]; evil -> \\"' in text


def test_log_shows_when_a_round_ran(tmp_path: Path) -> None:
    times = {"started_at": "2026-01-02T03:04:05Z", "finished_at": "2026-01-02T03:05:35Z"}
    found = memory(tmp_path, rounds.row(1), rounds.row(2, **times))
    text = found.views()[found.layout.log]
    assert "**Times.** 2026-01-02 03:04:05 UTC, 90.0 s: training 2.0 s, evaluation 1.0 s." in text
    assert text.count("**Times.**") == 1, "rows without times say nothing of them"


def test_log_names_the_circuits_of_a_family() -> None:
    counts = PairedCounts(shots=5000, errors_reference=90, errors_candidate=70, fixed=30, broken=10)
    results = [
        MemberResult(distance=d, rounds=d, p=0.005, effects=(paired_effect(counts),), holds=d == 5) for d in (5, 3)
    ]
    members = [MemberCounts(distance=d, rounds=d, p=0.005, counts=counts) for d in (5, 3)]
    text = views.section(rounds.row(1, val_shots=5000, val_members=members, holdout_members=results), Draft())
    line = next(line for line in text.splitlines() if line.startswith("**Family.**"))
    assert "Errors on 5000 val shots each: d=5 r=5 90 → 70, d=3 r=3 90 → 70." in line
    assert "d=5 r=5 p=0.005: +22.2% [" in line and "90 → 70 errors in 5000 shots, claimed; d=3 r=3" in line
    assert "not claimed" in line and "**Family.**" not in views.section(rounds.row(2), Draft())
