"""Datasets of questions: rows become environments."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from autoqec.errors import UsageError
from autoqec.extensions.continual.environments.datasets import QAEnvDataset, QAEnvDatasetConfig
from autoqec.extensions.continual.environments.qa import MathQAEnv, MCQEnv, QAEnv

ROWS = [{"question": "2+2?", "answer": "4"}, {"question": "3+3?", "answer": "6"}]


class Special(QAEnv):
    """An environment defined by a user."""


def build(**config) -> QAEnvDataset:
    return QAEnvDataset(QAEnvDatasetConfig(**config))


def test_dataset_is_built_once_and_needs_no_logger():
    dataset = build(items=ROWS)
    assert [env.reset() for env in dataset.get_dataset()] == ["2+2?", "3+3?"]
    assert all(first is second for first, second in zip(dataset.get_dataset(), dataset.get_dataset(), strict=True))
    assert QAEnvDataset(dataset.config, logger=logging.getLogger("x")).dataset is not dataset.dataset


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({}, QAEnv),
        ({"task_type": "numeric"}, MathQAEnv),
        ({"env_class": "MathQAEnv"}, MathQAEnv),
        ({"task_type": "numeric", "env_class": "QAEnv"}, QAEnv),
        ({"task_type": "custom", "env_class": f"{__name__}.Special"}, Special),
    ],
)
def test_env_class_takes_precedence_over_task_type(config, kind):
    assert type(build(items=ROWS, **config).dataset[0]) is kind


def test_custom_without_env_class_and_unknown_ones_are_refused():
    with pytest.raises(ValidationError, match="needs `env_class`"):
        QAEnvDatasetConfig(items=ROWS, task_type="custom")
    for name in (
        "NoSuchEnv",
        "no.such.module.Env",
        "json.JSONDecoder",
        "autoqec.extensions.continual.environments.qa.Nope",
    ):
        with pytest.raises(UsageError, match="env_class|QAEnv"):
            build(items=ROWS, env_class=name)


def test_fields_are_read_under_both_names():
    rows = [{"problem": "2+2?", "solution": "4"}]
    for names in (("question_field", "answer_field"), ("input_field", "target_field")):
        env = build(items=rows, **dict(zip(names, ("problem", "solution"), strict=True))).dataset[0]
        assert env.evaluate("4")["correct"]


def test_json_lines_with_and_without_the_last_newline(tmp_path):
    text = "\n".join(json.dumps(row) for row in ROWS)
    for number, content in enumerate((text, text + "\n", text + "\n\n")):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(content)
        assert len(build(dataset_path=str(path)).dataset) == 2
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    assert len(build(dataset_path=str(tmp_path / "rows.json")).dataset) == 2


@pytest.mark.parametrize("name", ["none.jsonl", "none.json"])
def test_missing_file_is_named(name, tmp_path):
    with pytest.raises(UsageError, match=name):
        build(dataset_path=str(tmp_path / name))


def test_damaged_file_is_named_with_its_line(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS[0]) + "\n{oops\n")
    with pytest.raises(UsageError, match=r"rows.jsonl:2"):
        build(dataset_path=str(tmp_path / "rows.jsonl"))


@pytest.mark.parametrize("config", [{}, {"items": ROWS, "hf_name": "x"}])
def test_dataset_needs_exactly_one_source(config):
    with pytest.raises(ValidationError, match="is needed"):
        QAEnvDatasetConfig(**config)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in the forms that the library writes; the library's cache is below the folder too."""
    datasets = pytest.importorskip("datasets", reason="pip install 'autoqec[hf]'")
    folder = tmp_path_factory.mktemp("stored")
    rows = datasets.Dataset.from_list(ROWS)
    rows.save_to_disk(str(folder / "one"))
    datasets.DatasetDict({"test": rows}).save_to_disk(str(folder / "one_split"))
    datasets.DatasetDict({"train": rows.select([0]), "test": rows}).save_to_disk(str(folder / "splits"))
    (folder / "hub").mkdir()
    rows.to_parquet(str(folder / "hub/test-00000-of-00001.parquet"))
    return folder


@pytest.fixture
def offline_cache(tmp_path, monkeypatch):
    """The library's cache in the test's folder."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("name", "split", "count"),
    [("one", None, 2), ("one", "test", 2), ("one_split", None, 2), ("splits", "train", 1), ("splits", "test", 2)],
)
def test_a_folder_of_save_to_disk_is_loaded(stored, name, split, count):
    dataset = build(dataset_path=str(stored / name), split=split)
    assert [env.answer for env in dataset.dataset] == [row["answer"] for row in ROWS][:count]


@pytest.mark.usefixtures("offline_cache")
def test_load_dataset_reads_the_rows_of_a_split(stored):
    for split in ("test", None):
        dataset = build(hf_name=str(stored / "hub"), split=split)
        assert [env.reset() for env in dataset.dataset] == ["2+2?", "3+3?"] and not dataset.errors


@pytest.mark.usefixtures("offline_cache")
@pytest.mark.parametrize("split", [None, "val"])
def test_splits_are_named_if_none_is_chosen(stored, split):
    with pytest.raises(UsageError, match="split") as raised:
        build(dataset_path=str(stored / "splits"), split=split)
    assert raised.value.hint == "set `split` to one of: train, test"
    if split:
        with pytest.raises(UsageError, match="val"):
            build(hf_name=str(stored / "hub"), split=split)


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("Dataset 'org/name' is a gated dataset on the Hub.", "set HF_TOKEN.*datasets/org/name.*save_to_disk"),
        ("Couldn't reach 'org/name' on the Hub", "^download it .*save_to_disk"),
    ],
)
def test_a_dataset_that_needs_a_key_or_a_network_names_both_ways_out(monkeypatch, message, hint):
    def load_dataset(*args, **kwargs):
        raise ConnectionError(message)

    monkeypatch.setattr(pytest.importorskip("datasets"), "load_dataset", load_dataset)
    with pytest.raises(UsageError, match="org/name") as raised:
        build(hf_name="org/name")
    assert re.search(hint, raised.value.hint)


def test_without_the_library_the_hint_is_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"pip install 'autoqec\[hf\]'"):
        build(hf_name="org/name")


def test_row_without_the_field_is_recorded_and_skipped():
    dataset = build(items=[ROWS[0], {"question": "no answer"}, ROWS[1]])
    assert len(dataset.dataset) == 2
    assert dataset.errors == ["row 2: field 'answer' is missing"]
    with pytest.raises(UsageError, match="none of the 1 rows.*'answer' is missing"):
        build(items=[{"question": "no answer"}])
    with pytest.raises(UsageError, match="none of the 0 rows"):
        build(items=[])


def test_metadata_reaches_the_info():
    row = {"question": "q", "answer": 1, "options": ["x", "y"], "qid": 7, "source": "exam", "other": "dropped"}
    config = {"choices_field": "options", "id_field": "qid", "meta_fields": ["source"], "task_type": "mcq"}
    env = build(items=[row], prompt_template="think", **config).dataset[0]
    assert env.env_id == "7"
    env.reset()
    assert env.step("y")[3] == {
        "question_id": 7,
        "id": 7,
        "choices": ["x", "y"],
        "source": "exam",
        "prompt_template": "think",
    }
    assert build(items=ROWS).dataset[1].env_id == "qa_2"


def test_choices_from_single_fields_are_shuffled_the_same_way_every_time():
    rows = [{"q": f"question {n}", "right": "r", "w1": "x", "w2": "y", "w3": "z"} for n in range(20)]
    config = {
        "question_field": "q",
        "answer_field": "right",
        "choices_field": ["right", "w1", "w2", "w3"],
        "shuffle_choices": True,
        "task_type": "mcq",
    }
    once, again = build(items=rows, **config).dataset, build(items=rows, **config).dataset
    letters = [env.target_letter for env in once if isinstance(env, MCQEnv)]
    assert letters == [env.target_letter for env in again if isinstance(env, MCQEnv)]
    assert len(set(letters)) == 4
    assert all(env.evaluate("r")["correct"] for env in once)


def test_template_must_hold_the_question():
    assert build(items=ROWS, instruction_template="Solve: {question}").dataset[0].reset() == "Solve: 2+2?"
    with pytest.raises(ValidationError, match="question"):
        QAEnvDatasetConfig(items=ROWS, instruction_template="Solve it")


def test_tolerance_of_the_config_reaches_numeric_questions_and_no_others():
    rows = [{"question": "pi?", "answer": "3.14"}]
    env = build(items=rows, task_type="numeric", tolerance=0.01).dataset[0]
    assert env.evaluate("3.15")["correct"] is True
    assert build(items=rows, task_type="numeric").dataset[0].evaluate("3.15")["correct"] is False
    with pytest.raises(UsageError, match="compares no numbers"):
        build(items=rows, tolerance=0.01)
