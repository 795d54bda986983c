"""The Ideator's view lies within its budget for a run of any length, and has every round with its figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoqec.contracts.env import EnvSpec
from autoqec.contracts.profiles import PROFILES
from autoqec.contracts.round import PairedCounts
from autoqec.contracts.verdict import PairedEffect
from autoqec.contracts.views import IdeatorView, NextTest
from autoqec.extensions.language_models.clients.scripted import ScriptedLM
from autoqec.extensions.language_models.contracts import Citation
from autoqec.extensions.language_models.roles import view_text
from autoqec.extensions.language_models.roles.ideator import LlmIdeator
from autoqec.extensions.language_models.roles.notebook import MAX_LESSON_CHARS, MAX_LESSONS, Notebook
from autoqec.extensions.language_models.roles.record import RoundEvidence
from autoqec.ideators import space
from autoqec.locate import builtin_envs
from autoqec.qec.stats import paired_effect
from tests.support.research import FakeResearch
from tests.support.role_views import ideator_view
from tests.unit.extensions.language_models.roles.test_record import row

ENV = EnvSpec.model_validate(yaml.safe_load(builtin_envs()["surface_d5_depol"].read_text(encoding="utf-8")))
FAILED = {"status": "train_error", "status_reason": "the loss is not finite", "delta_ler": None}


def gain(number: int, reference: str, relative: float) -> PairedEffect:
    counts = PairedCounts(shots=200_000, errors_reference=9000, errors_candidate=7900, fixed=3000, broken=1900)
    return PairedEffect(
        reference=reference, p=0.005, counts=counts, delta=5.5e-4, delta_low=2e-4, delta_high=8e-4,
        relative=relative, relative_low=relative - 0.05, relative_high=relative + 0.05,
    )  # fmt: skip


def evidence(number: int) -> RoundEvidence:
    if number % 10 == 3:
        return RoundEvidence()
    counts = PairedCounts(
        shots=40_000, errors_reference=1400, errors_candidate=1100 + number, fixed=700, broken=400 + number
    )
    gains = (gain(number, "mwpm", 0.122), gain(number, "mwpm_correlated", -0.034)) if number % 3 == 0 else ()
    curves = {name: [(50 * k, 0.5 / k) for k in range(1, 40)] for name in ("edge labels", "through the matching")}
    return RoundEvidence(paired_effect(counts), gains, curves)


def rows(count: int) -> list[dict[str, Any]]:
    """A run with long texts: every third round verified, every tenth failed, children of earlier rounds."""
    found = []
    for number in range(1, count + 1):
        params: Any = space.params_of(space.TEMPLATES[0].config)
        config = space.build(params | {"training.learning_rate": 1e-4 * (1 + number % 20)})
        one = row(
            number, dsl_config=config, n_params=118_000 + number, flops_per_syndrome=2_340_000 + number,
            hypothesis=f"idea{number} " + "is a longer sentence about a wider network that sees more " * 4,
            summary_1line=f"result{number} " + "the interval lies above zero and so on " * 6,
            next_hypothesis_seed=f"advice{number} " + "try another width " * 12,
            fork_from="baseline" if number % 4 else f"exp/r/{number - 3:02d}-x",
        )  # fmt: skip
        if number % 10 == 3:
            one |= FAILED
        elif number % 3 == 0:
            one |= {"verify_verdict": "INCONCLUSIVE", "verify_reasons": ["the evidence did not suffice " * 6] * 3}
        found.append(one)
    if count > 5:
        found[5] |= {"verify_verdict": "VERIFIED", "delta_vs_baseline_holdout": 5e-3}
    return found


def view(count: int, **more: Any) -> IdeatorView:
    return ideator_view(
        rows(count), env=ENV, profile=PROFILES["dev"], baseline_config=space.TEMPLATES[0].config,
        next_test=NextTest(index=40, threshold=1234.5, first_threshold=123.4),
        sampler={"measured": count, "its own next proposal": "wider " * 40}, **more,
    )  # fmt: skip


def shown(role: LlmIdeator, given: IdeatorView) -> str:
    return "\n".join(str(message.content) for message in role.request(given).rendered_messages())


@pytest.fixture
def role(tmp_path: Path) -> LlmIdeator:
    """Return an Ideator whose every source is full."""
    book = Notebook(tmp_path / "notebook.jsonl")
    cites = [Citation(round=2, figure="flops_per_syndrome", value=2_340_002)] * 6
    for number in range(MAX_LESSONS):
        book.add(f"lesson{number} " + "long " * 80, cites, view(4).history)
    research = FakeResearch(
        code_may_change=True,
        evidence=evidence,
        diff=lambda branch, against: f"+++ {branch}\n" + "+    return self.norm(h)\n" * 400,
        state={"predicted_round_s": 60.0, "params_vs_time": [(1000, 60.0)] * 20},
        left=[f"limit {number}: 12 of 34 hours" for number in range(30)],
    )
    return LlmIdeator(ScriptedLM(["-"]), research, book)


def test_the_shares_add_up() -> None:
    parts = view_text.CONTEXT_CHARS + view_text.TURN_CHARS + view_text.ASIDE_CHARS
    assert parts == view_text.MAX_VIEW_CHARS == 30_000
    aside = view_text.LESSONS_CHARS + view_text.MACHINE_CHARS + view_text.LEFT_CHARS
    assert aside <= view_text.ASIDE_CHARS


@pytest.mark.parametrize("count", [0, 1, 10, 15, 16, 30, 61, 200, 203, 1000])
def test_view_lies_within_its_budget(role: LlmIdeator, count: int) -> None:
    text = shown(role, view(count, notes=["what an earlier run learned " * 8] * 60))
    assert len(text) <= view_text.MAX_VIEW_CHARS
    assert count < 15 or len(text) >= 20_000, "and uses it"


@pytest.mark.parametrize("count", [10, 30, 200])
def test_every_round_has_its_figures_and_texts(role: LlmIdeator, count: int) -> None:
    text = shown(role, view(count))
    lines, detailed = text.splitlines(), []
    for number in range(1, count + 1):
        (line,) = [one for one in lines if re.match(rf"r{number}f?[<;: ]", one)][-1:]
        effect = evidence(number).validation
        if f'name="round {number}' in text:
            detailed.append(number)
            continue
        parent = f"<{number - 3 if number % 4 == 0 else 0}|"
        assert parent in line and f"idea{number} " in line and ">" in line, line
        if effect is None:
            assert "train_error" in line
            continue
        assert f" {effect.counts.fixed}/{effect.counts.broken}|" in line, "fixed/broken"
        assert re.search(r"\|[-+][\d.]+\[-?[\d.]+,-?[\d.]+\] ", line), "difference with its interval"
        assert ("|12,-3.4|" in line) == (number % 3 == 0), "gain over each baseline"
        assert "118k/2.34M" in line or number > 499, "cost"
        assert "lr 0.0045>0.00" in line or count > 100 or number % 4 == 0, "what changed"
    assert "gain in % over mwpm, mwpm_correlated" in text or len(detailed) == count
    assert count in detailed and (6 in detailed or "left out" in text), "the last and the best verified round"
    for number in detailed:
        for word in (f"expected: idea{number}", f"result: result{number}", f"advice: advice{number}"):
            assert word in text or (word.startswith("advice") and count > 30), word
    assert all(f"lesson{number} " in text for number in range(MAX_LESSONS)) and "earlier rounds left out" not in text
    for part in ("e-value of 1.23e+03", "left of the budget", "code of round 6, the best", "median"):
        assert part in text, part


def test_longest_lesson_is_shown_in_full(tmp_path: Path) -> None:
    book = Notebook(tmp_path / "notebook.jsonl")
    texts = [f"{number:02d} " + "x" * (MAX_LESSON_CHARS - 3) for number in range(MAX_LESSONS)]
    for text in texts:
        book.add(text, [Citation(round=2, figure="n_params", value=118_002)], view(4).history)
    prompt = shown(LlmIdeator(ScriptedLM(["-"]), FakeResearch(evidence=evidence), book), view(4))
    assert all(f"{text} [r2 n_params" in prompt for text in texts)


def test_more_rounds_than_fit_are_counted(role: LlmIdeator) -> None:
    text = shown(role, view(1000))
    (left_out,) = re.findall(r"\((\d+) earlier rounds left out\)", text)
    assert 500 < int(left_out) < 900 and len(re.findall(r"^r\d+f?<", text, re.MULTILINE)) > 150


@pytest.mark.parametrize("use_tools", [True, False])
def test_view_names_only_tools_that_are_offered(use_tools: bool) -> None:
    """Command-line programs have none."""
    lm = ScriptedLM([])
    lm.supports_tools = use_tools
    research = FakeResearch(True, evidence=evidence, diff=lambda branch, against: "+x\n" * 4000)
    text = LlmIdeator(lm, research).request(view(40)).text()
    assert "texts are cut" in text and "(cut" in text
    assert ("read_round has them" in text, "read_code has all of it" in text) == (use_tools, use_tools)
    assert use_tools or not re.search(r"\b(read_round|read_code|read_notes|write_lesson|screen)\b", text)
