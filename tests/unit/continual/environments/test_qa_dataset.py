"""Rows become environments."""

from __future__ import annotations

import json
import logging
import sys
import types

import pytest
from pydantic import ValidationError

from autoqec.continual.environments.math_qa import MathQAEnv
from autoqec.continual.environments.mcq import MCQEnv
from autoqec.continual.environments.qa import QAEnv
from autoqec.continual.environments.qa_dataset import QAEnvDataset, QAEnvDatasetConfig
from autoqec.errors import UsageError

ROWS = [{"question": "2+2?", "answer": "4"}, {"question": "3+3?", "answer": "6"}]


class Special(QAEnv):
    """An environment of the user's own."""


def build(**config) -> QAEnvDataset:
    return QAEnvDataset(QAEnvDatasetConfig(**config))


def test_a_dataset_is_built_once_and_needs_no_logger():
    dataset = build(items=ROWS)
    assert [env.reset() for env in dataset.get_dataset()] == ["2+2?", "3+3?"]
    assert all(one is two for one, two in zip(dataset.get_dataset(), dataset.get_dataset(), strict=True))
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
def test_env_class_beats_task_type(config, kind):
    assert type(build(items=ROWS, **config).dataset[0]) is kind


def test_custom_without_env_class_and_unknown_ones_are_refused():
    with pytest.raises(ValidationError, match="needs `env_class`"):
        QAEnvDatasetConfig(items=ROWS, task_type="custom")
    for name in ("NoSuchEnv", "no.such.module.Env", "json.JSONDecoder", "autoqec.continual.environments.qa.Nope"):
        with pytest.raises(UsageError, match="env_class|QAEnv"):
            build(items=ROWS, env_class=name)


def test_fields_have_two_names():
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
def test_a_missing_file_is_named(name, tmp_path):
    with pytest.raises(UsageError, match=name):
        build(dataset_path=str(tmp_path / name))


def test_a_damaged_file_is_named_with_its_line(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS[0]) + "\n{oops\n")
    with pytest.raises(UsageError, match=r"rows.jsonl:2"):
        build(dataset_path=str(tmp_path / "rows.jsonl"))


@pytest.mark.parametrize("config", [{}, {"items": ROWS, "hf_name": "x"}])
def test_exactly_one_source(config):
    with pytest.raises(ValidationError, match="is needed"):
        QAEnvDatasetConfig(**config)


def test_hugging_face_by_name_and_from_disk(monkeypatch):
    calls = []
    library = types.ModuleType("datasets")
    library.load_dataset = lambda *a, **k: calls.append(("load_dataset", a, k)) or ROWS
    library.load_from_disk = lambda *a, **k: calls.append(("load_from_disk", a, k)) or {"test": ROWS}
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert len(build(hf_name="org/name", hf_config="main", split="train").dataset) == 2
    assert len(build(dataset_path="/a/folder", split="test").dataset) == 2
    assert calls == [
        ("load_dataset", ("org/name", "main"), {"split": "train"}),
        ("load_from_disk", ("/a/folder",), {}),
    ]


def test_without_the_library_the_mend_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"pip install 'autoqec\[hf\]'"):
        build(hf_name="org/name")


def test_a_row_without_the_field_is_recorded_and_left_out():
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


def test_the_template_must_hold_the_question():
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
