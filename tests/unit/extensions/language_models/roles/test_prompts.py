"""System prompts: what they say about decoders, inputs and code holds for the env and the options of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.env import BASELINES, EnvSpec
from autoqec.contracts.round import RoundMetrics
from autoqec.extensions.language_models.clients.scripted import ScriptedLM
from autoqec.extensions.language_models.roles import prompts
from autoqec.extensions.language_models.roles.analyst import LlmAnalyst
from autoqec.extensions.language_models.roles.coder import LlmCoder
from autoqec.extensions.language_models.roles.ideator import LlmIdeator
from autoqec.locate import builtin_envs
from tests.support.envs import recorded, surface
from tests.support.research import FakeResearch
from tests.support.role_views import analyst_view, coder_view, ideator_view

MLP = PredecoderDSL.model_validate({"type": "mlp", "mlp": {}}).config()
CODE_WORDS = ("code_change", "custom_fn", "Coder")
ENVS = {name: EnvSpec.model_validate(yaml.safe_load(path.read_text("utf-8"))) for name, path in builtin_envs().items()}


def ideator_system(env: EnvSpec, inputs: str, *, code_may_change: bool) -> str:
    role = LlmIdeator(ScriptedLM(["-"]), FakeResearch(code_may_change))
    request = role.request(ideator_view(env=env, inputs=inputs, baseline_config=MLP))
    return "\n".join(request.system)


@pytest.mark.parametrize("code_may_change", [False, True])
@pytest.mark.parametrize("name", sorted(ENVS))
def test_ideator_prompt_is_true_for_every_env(name: str, code_may_change: bool) -> None:
    env = ENVS[name]
    for inputs in ("all", "other_sector"):
        text = ideator_system(env, inputs, code_may_change=code_may_change)
        assert prompts.INNER_DECODERS[env.backend][0] in text
        assert ("matching" in text) == (env.backend == "mwpm"), "only an env with a matching graph"
        assert ("cannot be fine-tuned through" in text) == (env.backend != "mwpm")
        named = {baseline for baseline in BASELINES if f"{baseline} (" in text}
        assert named == set(env.baselines) - {env.backend}
        assert not any(word in text for word in ("half the way", "independent evidence", "stronger"))
        assert ("`inputs: all` is the only useful choice" in text) == (inputs == "all")
        assert ("`inputs: other_sector` reads the others" in text) == (inputs == "other_sector")
        assert [word in text for word in CODE_WORDS] == [code_may_change] * len(CODE_WORDS)


def test_ideator_prompt_names_the_shots_of_the_verifier() -> None:
    fresh = ideator_system(surface(), "all", code_may_change=False)
    sealed = ideator_system(recorded(), "all", code_may_change=False)
    assert "logical error rate on fresh shots. Goal:" in fresh and "sealed" not in fresh
    assert "logical error rate on sealed shots. A gain counts over the strongest baseline. Goal:" in sealed
    assert "fresh" not in sealed


@pytest.mark.parametrize(("sealed", "shots"), [(False, "fresh shots"), (True, "sealed shots")])
def test_analyst_prompt_names_the_shots_of_the_verifier(tmp_path: Path, sealed: bool, shots: str) -> None:
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(RoundMetrics(status="train_error", status_reason="x").dump()), encoding="utf-8")
    system = LlmAnalyst(ScriptedLM(["-"])).request(analyst_view(path, sealed_shots=sealed)).system
    assert f"asks the verifier to spend {shots} on the round" in system[0]


@pytest.mark.parametrize("fork_from", [(), ("exp/r/01-x",), ("exp/r/01-x", "exp/r/02-x")])
@pytest.mark.parametrize("modules", [{}, {"mlp.py": "x = 1\n"}])
def test_coder_prompt_is_true_with_and_without_open_modules(
    modules: dict[str, str], fork_from: tuple[str, ...]
) -> None:
    view = coder_view(MLP, modules=modules, fork_from=fork_from, compose_mode="with_edit" if fork_from[1:] else None)
    request = LlmCoder(ScriptedLM(["-"])).request(view)
    text = "\n".join([*request.system, str(request.messages[0].content)])
    assert "matching" not in text
    for word in (
        "whole-file edits",
        "Edited code may",
        "custom_fn.py",
        "edits if it needs any",
        "Leave `edits` empty if",
    ):
        assert (word in text) == bool(modules), word
    assert ("does not change" in text) == (not modules)
    assert ("built and take one training step" in text) == (bool(modules) and len(fork_from) < 2)


def test_every_baseline_of_an_env_has_a_description() -> None:
    assert set(BASELINES) <= set(prompts.BASELINES)
    assert prompts.describe_baselines(["sinter:a:b:c"]) == "sinter:a:b:c (external decoder)"
