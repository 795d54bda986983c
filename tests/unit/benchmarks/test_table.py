from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks import prove_verifier, table
from benchmarks.table import Row, load, record, render


def test_suite_replaces_its_own_rows_only(tmp_path: Path) -> None:
    results, readme = tmp_path / "results.json", tmp_path / "README.md"
    record("b", [Row("speed", "2.0x", "rebuild per shot", "1,000 shots")], results=results, readme=readme)
    record("a", [Row("one", "1", "aim", "runs"), Row("two", "2", "aim", "runs")], results=results, readme=readme)
    record("a", [Row("three", "3", "aim | bar", "runs")], results=results, readme=readme)
    rows = load(results)
    assert [(row["suite"], row["name"]) for row in rows] == [("a", "three"), ("b", "speed")]
    assert all(row["machine"] and row["date"] for row in rows)
    assert readme.read_text() == render(rows) and "| three | 3 | aim / bar |" in readme.read_text()


def test_part_of_a_suite_replaces_the_rows_of_its_names(tmp_path: Path) -> None:
    paths = {"results": tmp_path / "results.json", "readme": tmp_path / "README.md"}
    record("a", [Row("one", "1", "aim", "runs"), Row("two", "2", "aim", "runs")], **paths)
    record("a", [Row("two", "3", "aim", "runs")], replace_suite=False, **paths)
    assert [(row["name"], row["figure"]) for row in load(paths["results"])] == [("one", "1"), ("two", "3")]


def test_committed_table_equals_its_results() -> None:
    assert table.README.read_text() == render(load())


def test_prove_verifier_samples_a_trial() -> None:
    rng = np.random.default_rng(2)
    none, _ = prove_verifier.false_discoveries(10, "dev", rng)
    assert none.figure.startswith("0.00%")
    found = [
        prove_verifier.verify_candidate(prove_verifier.Candidate(0.1, 1.5), rng, 1, 0, 2_000_000, 1_000_000)
        for _ in range(5)
    ]
    assert {outcome.verdict for outcome in found} == {"VERIFIED"}
    bias, curse = prove_verifier.winners_curse(10, rng)
    assert abs(float(bias.figure.split()[0])) < 2 < float(curse.figure.split()[0])


def test_prove_verifier_names_the_backends_in_which_every_test_ran() -> None:
    counter = prove_verifier.OutcomeCounter()
    counter.outcomes = {"a[bubblewrap-x]": "passed", "a[landlock-x]": "passed", "b[landlock]": "skipped", "c": "failed"}
    row = counter.backends
    assert row.figure == "bubblewrap" and "landlock: 1 passed, 0 failed, 1 skipped" in row.runs
    assert counter.describe() == "2 passed, 1 failed, 1 skipped"
