"""Two scripted policies for tests and benchmarks without a paid model: `scripted:expert` and `scripted:novice`.

Both read the same prompts, call the same tools and answer in the same forms as a language model, and depend on the
request alone. The expert screens, keeps a notebook, changes code twice and repairs the first change; the novice repeats
itself, exceeds the limits and does not repair. Neither is a model of a language model: they exercise the protocol at
two known qualities.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.extensions.language_models.clients.base import Request, ToolCall
from autoqec.extensions.language_models.clients.scripted import ScriptedResponse, last_message_text, register

Config = dict[str, Any]

CODE_ROUNDS = (3, 8)  # rounds in which the expert changes code, if it may
SCREEN_ROUND = 2
SCREEN_SHARE = 0.05

_HEAD = """from torch import nn


class Head(nn.Module):
    def __init__(self, hidden, n_outputs):
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, n_outputs)

    def forward(self, h):
        return self.out({inside}){after}
"""
_FIRST_CHANGE = "a head that normalizes its input before the linear layer"
_SECOND_CHANGE = "a head that normalizes its input and takes tanh of it before the linear layer"
_FIRST_DRAFT = _HEAD.format(inside="self.norm(h)", after="[..., :1]")  # one output instead of one per edge


def expert(request: Request) -> ScriptedResponse:
    """Answer as a careful researcher."""
    if request.role == "coder":
        return _expert_code(request)
    if request.role == "analyst":
        return _analysis(request, nominates=True)
    number, turn = next_round(request), _n_results(request)
    tools = {tool.name for tool in request.tools}
    code_may_change = any("code_change" in block for block in request.system)
    choices = [_mlp(*sizes) for sizes in _EXPERT_SIZES]
    if number == SCREEN_ROUND and "screen" in tools and turn < 2:
        arguments = {"proposal": choices[1 + turn], "fork_from": [], "share": SCREEN_SHARE}
        return ToolCall(id=f"screen-{turn}", name="screen", input=arguments)
    if number > 2 and "write_lesson" in tools and turn == 0:
        cites = [{"round": n, "figure": "n_params", "value": float(params)} for n, params in _sizes_of(request)[-1:]]
        if cites:
            text = f"round {cites[0]['round']} shows what a net of its size reaches"
            return ToolCall(id="lesson", name="write_lesson", input={"text": text, "cites": cites})
    chosen = choices[(number - 1 + _n_rejected(request)) % len(choices)]
    if number == SCREEN_ROUND and turn == 2:
        chosen = choices[1 + _better_screen(request)]
    if code_may_change and number in CODE_ROUNDS:
        change = _FIRST_CHANGE if number == CODE_ROUNDS[0] else _SECOND_CHANGE
        config = {**chosen, "head": "custom"}
        return _proposal("a normalized head trains faster", f"norm-head-{number}", config, code_change=change)
    return _proposal(f"a small dense net that finishes its training, number {number}", f"expert-{number}", chosen)


def novice(request: Request) -> ScriptedResponse:
    """Answer as a careless user of the protocol."""
    if request.role == "coder":
        config = _task(request)["proposal"]
        broken = {"path": "custom_fn.py", "text": _FIRST_DRAFT}
        edits = [broken] if config.get("head") == "custom" else []
        return {"dsl_config": config, "edits": edits, "commit_message": "as proposed"}
    if request.role == "analyst":
        return _analysis(request, nominates=False)
    number = next_round(request)
    if number % 3 == 2:
        return "I would simply make it bigger."  # prose instead of the form
    if number % 3 == 0:
        big = PredecoderDSL.model_validate({"type": "mlp", "mlp": {"hidden": 4096, "depth": 8}}).config()
        return _proposal("bigger is better", f"big-{number}", big)
    sizes = _NOVICE_SIZES[(number // 3) % len(_NOVICE_SIZES)]
    config = PredecoderDSL.model_validate({"type": "mlp", "output_mode": "hard_flip", "mlp": sizes}).config()
    return _proposal("flip what looks wrong", f"novice-{number}", config)


POLICIES: dict[str, Callable[[Request], ScriptedResponse]] = {"expert": expert, "novice": novice}
for _name, _policy in POLICIES.items():
    register(_name, _policy)

_EXPERT_SIZES = (
    (64, 2, 3e-3), (96, 1, 3e-3), (72, 2, 3e-3), (128, 1, 2e-3), (64, 1, 5e-3), (128, 2, 2e-3), (88, 2, 5e-3),
    (96, 2, 3e-3), (192, 1, 1e-3), (80, 2, 2e-3), (160, 2, 1e-3), (112, 1, 4e-3),
)  # fmt: skip
_NOVICE_SIZES: tuple[Config, ...] = ({"hidden": 8, "depth": 1}, {"hidden": 400, "depth": 4}, {"hidden": 16, "depth": 6})


def next_round(request: Request) -> int:
    """Return the number of the round that is asked for, from the counts in the prompt."""
    match = re.search(r"^rounds: (\d+)$", request.text(), re.MULTILINE)
    return 1 + (int(match[1]) if match else 0)


def _mlp(hidden: int, depth: int, rate: float) -> Config:
    training = {"learning_rate": rate, "finetune_share": 1.0}
    return PredecoderDSL.model_validate(
        {"type": "mlp", "mlp": {"hidden": hidden, "depth": depth}, "training": training}
    ).config()


def _proposal(hypothesis: str, slug: str, config: Config, *, code_change: str = "") -> dict[str, Any]:
    return {
        "hypothesis": hypothesis, "slug": slug, "fork_from": [], "proposal": config, "code_change": code_change,
    }  # fmt: skip


def _n_results(request: Request) -> int:
    """Return how many tool calls of this conversation were answered."""
    return sum(message.role == "assistant" for message in request.messages)


def _n_rejected(request: Request) -> int:
    return request.text().count('name="why your last answer was rejected"')


def _sizes_of(request: Request) -> list[tuple[int, int]]:
    """Return (round, parameters) of the measured rounds that the record shows."""
    found = re.findall(r"^r(\d+); [^\n]*?; (\d+) params,", "\n".join(request.context), re.MULTILINE)
    return [(int(number), int(params)) for number, params in found]


def _better_screen(request: Request) -> int:
    """Return which of the two screens had the larger gain; the first one if one failed."""
    results = [json.dumps(list(message.content)) for message in request.messages if message.role == "user"][1:]
    gains = [match and float(match[1]) for match in (re.search(r"delta ([-+][\d.e-]+) \[", text) for text in results)]
    return int(len(gains) == 2 and gains[1] is not None and gains[1] > (gains[0] or 0.0))


def _task(request: Request) -> dict[str, Any]:
    match = re.search(r'name="task">\n(.*?)\n</data-', str(request.messages[0].content), re.DOTALL)
    task: dict[str, Any] = json.loads(match[1]) if match else {}
    return task


def _expert_code(request: Request) -> ScriptedResponse:
    """Write the first head with a mistake, and without it once the traceback names it; the second one without."""
    task = _task(request)
    if "change of the code" not in task:
        return {"dsl_config": task["proposal"], "edits": [], "commit_message": "config only"}
    second = task["change of the code"] == _SECOND_CHANGE
    inside = "self.norm(h).tanh()" if second else "self.norm(h)"
    repaired = "why your last answer was rejected" in last_message_text(request)
    text = _HEAD.format(inside=inside, after="") if second or repaired else _FIRST_DRAFT
    edit = {"path": "custom_fn.py", "text": text}
    return {"dsl_config": task["proposal"], "edits": [edit], "commit_message": "normalize before the head"}


def _analysis(request: Request, *, nominates: bool) -> dict[str, Any]:
    turn = str(request.messages[0].content)
    candidate = nominates and "The interval lies above 0" in turn and '"status": "ok"' in turn
    return {
        "verdict": "candidate" if candidate else "ignore",
        "summary_1line": "the interval lies above 0" if candidate else "no gain that the validation shots show",
        "analysis": "The paired interval on the validation shots decides.",
        "next_hypothesis_seed": "compare with the round of the closest size",
    }
