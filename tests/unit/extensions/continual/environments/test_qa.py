"""Tests of the question environments."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from autoqec.errors import ContractError, UsageError
from autoqec.extensions.continual.environments.base import Environment, StepResult
from autoqec.extensions.continual.environments.qa import MathQAEnv, MCQEnv, QAEnv, extract_boxed
from tests.suites.environment_suite import Feedback


def test_environment_is_abstract():
    with pytest.raises(TypeError):
        Environment()  # type: ignore[abstract]


def test_step_result_is_strict():
    result = StepResult(obs=None, action="a", feedback={}, done=True)
    assert result.dump() == {"obs": None, "action": "a", "feedback": {}, "done": True}
    with pytest.raises(ValidationError):
        StepResult(obs=None, action="a", feedback={}, done=True, reward=1)  # type: ignore[call-arg]
    for name in result.dump():
        with pytest.raises(ValidationError, match=name):
            StepResult.model_validate({key: value for key, value in result.dump().items() if key != name})


def test_exact_match_decides_correctness():
    env = QAEnv("Capital of France?", "Paris")
    assert env.reset() == "Capital of France?"
    assert env.step("Paris") == (None, {"correct": True, "target": "Paris", "message": "exact-match"}, True, {})
    env.reset()
    assert env.step("paris")[1]["correct"] is False


def test_second_step_after_the_end_raises():
    env = QAEnv("q", "a")
    env.reset()
    env.step("a")
    with pytest.raises(ContractError, match="reset"):
        env.step("a")


def test_template_may_contain_other_braces():
    env = QAEnv("What is {x}?", "1", instruction_template='Reply {"answer": …}. {question} {question_id}')
    assert env.reset() == 'Reply {"answer": …}. What is {x}? {question_id}'


def test_hooks_normalize_question_target_and_action():
    class Loose(QAEnv):
        def normalize_input(self, question):
            return question.upper()

        def normalize_target(self, answer):
            return answer.lower()

        def normalize_action(self, action):
            return action.strip().lower()

    env = Loose("q", "ANSWER")
    assert env.reset() == "Q"
    assert env.evaluate(" Answer\n") == {"correct": True, "target": "answer", "message": "exact-match"}


@pytest.mark.parametrize(
    ("action", "target", "correct"),
    [
        ("\\boxed{7}", "7", True),
        ("7.0", "7", True),
        ("$7$", "7", True),
        ("1,000", "1000", True),
        ("1000", "1,000", True),
        ("So the answer is $\\boxed{ 1{,}000 }$", "1000", True),
        ("First \\boxed{3}, no: \\boxed{7}.", "7", True),
        ("I get \\boxed{\\frac{1}{2}} in the end", "0.5", True),
        ("\\boxed{\\dfrac{1}{2}}", "\\frac{1}{2}", True),
        ("-\\frac{3}{4}", "-0.75", True),
        ("1/3", "0.333333333", True),
        ("0.5000001", "0.5", True),
        ("0.51", "0.5", False),
        ("10000000", "10000001", False),
        ("the answer is 7 cm", "7", True),
        ("x = 7.", "7", True),
        ("\\boxed{7 \\text{ cm}}", "7", True),
        ("\\boxed{2x+7}", "7", False),
        ("\\boxed{8} because 7", "7", False),
        ("no number at all", "7", False),
        ("\\boxed{7", "7", True),
        ("\\boxed{\\frac{1}{0}}", "7", False),
        ("\\boxed{x^2 + 1}", "x^2+1", True),
        ("\\boxed{x^2 + 2}", "x^2+1", False),
        ("nan", "7", False),
        ("1e999999999", "7", False),
        ("9" * 5000, "7", False),
        ("070", "70", True),
    ],
)
def test_numbers_and_latex_are_compared_by_value(action, target, correct):
    feedback = MathQAEnv("q", target).evaluate(action)
    Feedback.model_validate(feedback, strict=True)
    assert feedback["correct"] is correct


def test_tolerance_can_be_set():
    assert MathQAEnv("q", "3.14", tolerance=0.01).evaluate("3.15")["correct"] is True
    assert MathQAEnv("q", 204).evaluate("\\boxed{204}")["correct"] is True


def test_boxes_count_braces():
    assert extract_boxed("\\boxed{\\frac{1}{2}}") == "\\frac{1}{2}"
    assert extract_boxed("none") is None and extract_boxed("\\boxed{open {x}") is None


CHOICES = ["red", "green", "blue", "Deep Purple"]


@pytest.mark.parametrize(
    ("action", "letter"),
    [
        ("a", "A"),
        ("A", "A"),
        ("(A)", "A"),
        ("A.", "A"),
        (" b) ", "B"),
        ("green", "B"),
        ("  deep   PURPLE. ", "D"),
        ("C. blue", "C"),
        ("The answer is (D).", "D"),
        ("I thought the answer is A, but the answer is B", "B"),
        ("Answer: **C**", "C"),
        ("E", None),
        ("A car", None),
        ("", None),
    ],
)
def test_reply_names_a_choice(action, letter):
    assert MCQEnv("q", "A", choices=CHOICES).letter_of(action) == letter


@pytest.mark.parametrize(
    ("target", "letter"),
    [(0, "A"), (3, "D"), ("b", "B"), ("(C)", "C"), ("blue", "C"), ("1", "B"), ("deep purple", "D")],
)
def test_target_is_a_letter_an_index_or_a_text(target, letter):
    env = MCQEnv("q", target, choices=CHOICES)
    assert env.target_letter == letter
    feedback = env.evaluate(letter)
    assert feedback["correct"] is True
    assert feedback["extra"] == {"chosen": letter, "expected": letter}


@pytest.mark.parametrize("target", [4, -1, True, "Z", "yellow", "17"])
def test_target_outside_the_choices_is_refused(target):
    with pytest.raises(UsageError, match="none of the 4 choices"):
        MCQEnv("q", target, choices=CHOICES)


def test_numeric_choices_are_text_first():
    assert MCQEnv("2+2?", "4", choices=["4", "3", "2", "1", "0"]).target_letter == "A"


def test_observation_lists_the_choices():
    assert MCQEnv("q", 0, {"choices": ["x", "y"]}).reset() == "q\nA. x\nB. y"
    with pytest.raises(UsageError, match="choices"):
        MCQEnv("q", 0)
