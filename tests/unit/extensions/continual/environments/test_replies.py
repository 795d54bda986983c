r"""A hundred typical replies of models, each with the answer that it gives."""

from __future__ import annotations

from fractions import Fraction

import pytest

from autoqec.extensions.continual.environments.qa import MathQAEnv, MCQEnv, read_number

CHOICES = ["red", "green", "blue", "Deep Purple"]
LETTERS = [
    ("B", "B"),
    ("b", "B"),
    ("(B)", "B"),
    ("B.", "B"),
    ("B) green", "B"),
    ("**B**", "B"),
    ("**B.** green", "B"),
    ("**(B)**", "B"),
    ("`B`", "B"),
    ("$B$", "B"),
    (r"\boxed{B}", "B"),
    (r"$\boxed{\text{B}}$", "B"),
    (r"\boxed{\textbf{(B)}}", "B"),
    (r"\boxed{\text{B. green}}", "B"),
    (r"\boxed{green}", "B"),
    (r"First \boxed{A}, no: \boxed{B}", "B"),
    ("The correct option is B", "B"),
    ("The correct option is **B**.", "B"),
    ("The correct answer is option B.", "B"),
    ("The answer is (b).", "B"),
    ("The answer to this question is B.", "B"),
    ("**Answer:** B", "B"),
    ("Answer: **B. green**", "B"),
    ("Final answer: B", "B"),
    ("answer: b", "B"),
    ("I choose B because grass is green.", "B"),
    ("I would go with B.", "B"),
    ("B is correct.", "B"),
    ("(B) is the correct answer, since grass is green.", "B"),
    ("Option B", "B"),
    ("Option A is wrong. Option B fits.", "B"),
    ("The correct choice is B, because option A is red.", "B"),
    ("The answer is green.", "B"),
    ("Grass is green.\n\nB", "B"),
    ("Let me think.\nGrass reflects light.\n**B. green**", "B"),
    ("I first said the answer is A. The answer is B.", "B"),
    ("It must be **B** here.", "B"),
    ("The answer is a mystery.", None),
    ("The answer is A or B.", None),
    ("The answer is not B.", None),
    ("Option A or option B", None),
    ("A car is red", None),
    ("E", None),
    (r"\boxed{E}", None),
    ("", None),
]
NUMBERS = [
    ("7", "7"),
    ("**7**", "7"),
    ("-7", "-7"),
    ("−7", "-7"),
    ("7.", "7"),
    ("0.5", "1/2"),
    (".5", "1/2"),
    ("1,000", "1000"),
    (r"1{,}000", "1000"),
    (r"1\,000\,000", "1000000"),
    (r"\boxed{7}", "7"),
    (r"\boxed{x = 7}", "7"),
    (r"So $x_1 = \boxed{7}$, as 3+4=7.", "7"),
    (r"\frac12", "1/2"),
    (r"\frac{1}{2}", "1/2"),
    (r"\frac{1}2", "1/2"),
    (r"\frac 1 2", "1/2"),
    (r"\dfrac{22}{7}", "22/7"),
    (r"-\frac{3}{4}", "-3/4"),
    (r"\frac{-3}{4}", "-3/4"),
    ("1/2", "1/2"),
    ("7 / 2", "7/2"),
    ("2 1/2", "5/2"),
    ("-2 1/2", "-5/2"),
    (r"2\frac{1}{2}", "5/2"),
    (r"2\frac12", "5/2"),
    (r"\boxed{3\tfrac{3}{4}}", "15/4"),
    ("2½", "5/2"),
    ("½", "1/2"),
    ("3e5", "300000"),
    (r"3 \times 10^5", "300000"),
    ("2.5 × 10^{-3}", "1/400"),
    ("10^6", "1000000"),
    ("3 million", "3000000"),
    ("50%", "50 or 1/2"),
    ("The answer is **12.5 percent**.", "25/2 or 1/8"),
    (r"\boxed{50\%}", "50 or 1/2"),
    ("5 cm", "5"),
    ("5cm", "5"),
    (r"5\text{ cm}", "5"),
    (r"\boxed{5\,\mathrm{cm}^2}", "5"),
    ("9.8 m/s^2", "49/5"),
    (r"30^\circ", "30"),
    ("30°", "30"),
    ("$5", "5"),
    (r"\$5.50", "11/2"),
    ("5 dollars", "5"),
    ("The answer is 7 apples.", "7"),
    ("The answer is $\\frac{1}{2}$.", "1/2"),
    ("The answer is 7, since 3 + 4 are 7 and 9 is not.", "7"),
    ("The answer is 3 + 4 = 7.", "7"),
    ("Final answer: **12**", "12"),
    ("We get 3 from 9, so x = 12", "12"),
    (r"\boxed{7\text{ or }8}", None),
    (r"\boxed{2x}", None),
    (r"\boxed{2\pi}", None),
    (r"\boxed{\frac{1}{0}}", None),
    ("no number at all", None),
]


@pytest.mark.parametrize(("reply", "letter"), LETTERS)
def test_reply_to_a_multiple_choice_question(reply, letter):
    assert MCQEnv("Which colour is grass?", "B", choices=CHOICES).letter_of(reply) == letter


@pytest.mark.parametrize(("reply", "value"), NUMBERS)
def test_reply_to_a_numeric_question(reply, value):
    number = read_number(reply)
    readings = None if value is None else tuple(map(Fraction, value.split(" or ")))
    assert (None if number is None else number.readings) == readings


def test_suite_has_a_hundred_replies():
    assert len(LETTERS) + len(NUMBERS) >= 100


@pytest.mark.parametrize(
    ("reply", "target", "correct"),
    [
        ("50%", "0.5", True),
        ("50%", "50", True),
        ("50", "50%", True),
        (r"\boxed{50\%}", "50%", True),
        ("0.5", "50 percent", True),
        ("The answer is 12.5 percent", "1/8", True),
        ("5%", "50%", False),
        ("50", "0.5", False),
        ("5 cm", r"5\text{ cm}", True),
        (r"\text{even}", "even", True),
        (r"\boxed{(3,\, 4)}", "(3, 4)", True),
        (r"\boxed{7\text{ or }8}", "78", False),
    ],
)
def test_percent_units_and_text_are_parsed(reply, target, correct):
    assert MathQAEnv("q", target).evaluate(reply)["correct"] is correct


def test_tolerance_applies_to_integers_only_if_it_is_given():
    assert MathQAEnv("q", "100").evaluate("101")["correct"] is False
    assert MathQAEnv("q", "100", tolerance=0.02).evaluate("101")["correct"] is True
    assert MathQAEnv("q", "100", tolerance=0.0).evaluate("100.0000001")["correct"] is False
