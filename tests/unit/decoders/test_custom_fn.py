"""Custom code of a branch: linted, tested on a small batch, never replaced by a default."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autoqec.decoders.modules as own_surface
from autoqec.decoders.custom_fn import _smoke_test, lint
from autoqec.errors import ContractError

GOOD = """
import torch
from torch import nn


class MessageFn(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.mix = nn.Linear(2 * hidden, hidden)

    def forward(self, source, target, strength):
        return torch.tanh(self.mix(torch.cat([source, target], dim=-1))) + strength


class Aggregation(nn.Module):
    def __init__(self, hidden):
        super().__init__()

    def forward(self, message, dst, n):
        return 0.5 * message.new_zeros(message.shape[0], n, message.shape[2]).index_add(1, dst, message)


class Head(nn.Module):
    def __init__(self, hidden, n_outputs):
        super().__init__()
        self.out = nn.Linear(hidden, n_outputs)

    def forward(self, h):
        return self.out(h)
"""


def test_valid_code_passes() -> None:
    lint(GOOD)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("import os", "import of os"),
        ("from torch import os", "import of torch.os"),
        ("from typing import sys", "import of typing"),
        ("from torch.nn import *", r"import of torch.nn.\*"),
        ("x = 1", "module level"),
        ("torch.manual_seed(0)", "module level"),
        ("def f(a=open('x')):\n    return a", "`open`"),
        ("def f(a):\n    return torch.load(a)", r"`\.load`"),
        ("def f(a):\n    return torch.os.environ", r"`\.os`"),
        ("def f(a):\n    return a.__class__", "`.__class__`"),
        ("def f(a):\n    return a.item()", "gradients flow"),
        ("def f(a):\n    while True:\n        pass", "`while`"),
        ("def f(a):\n    return eval('a')", "`eval`"),
        ("def f(a:\n", "does not parse"),
    ],
)
def test_lint_names_line_and_remedy(line: str, message: str) -> None:
    with pytest.raises(ContractError, match=message) as caught:
        lint(GOOD + "\n" + line)
    assert "custom_fn.py:" in str(caught.value)


def test_file_without_a_known_class_is_refused() -> None:
    with pytest.raises(ContractError, match="MessageFn, Aggregation, Head"):
        lint("def f(x):\n    return x\n")


COMPILE = """
import os, sys, json
import torch
from autoqec.decoders import overlay
from autoqec.contracts.dsl import parse_dsl
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.errors import ContractError
from tests.support.envs import problem
prob = problem(3)
for tree in sys.argv[2:]:
    print("TREE", flush=True)
    if os.fork():
        assert os.wait()[1] == 0
        continue
    overlay.use_modules_dir(tree)
    try:
        for config in json.loads(sys.argv[1]):
            model = compile_predecoder(parse_dsl(config), prob, seed=0)
            for name, value in model.named_parameters():
                value.data = 0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name)))
            out = model(torch.ones(2, prob.n_detectors))
            print(tuple(out.shape), float(out.sum()))
    except ContractError as error:
        print("REFUSED", error)
    sys.stdout.flush()
    os._exit(0)  # without freeing each object
"""


def compiled(tmp_path: Path, codes: list[str | None], *configs: dict[str, Any]) -> list[str]:
    """Compile each code in a process of its own, which imports the modules of one branch only."""
    trees = [tmp_path / f"modules_{index}" for index in range(len(codes))]
    for tree, code in zip(trees, codes, strict=True):
        shutil.copytree(Path(own_surface.__file__).parent, tree, ignore=shutil.ignore_patterns("__pycache__"))
        if code is not None:
            (tree / "custom_fn.py").write_text(code)
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps(configs), *map(str, trees)],
        capture_output=True, text=True, cwd=root, check=True,
    )  # fmt: skip
    answers = [answer.strip() for answer in done.stdout.split("TREE\n")[1:]]
    assert len(answers) == len(codes), done.stdout
    return answers


CUSTOM = {"type": "gnn", "head": "custom", "gnn": {"hidden": 4, "message_fn": "custom", "aggregation": "custom"}}


def test_custom_parts_change_the_compiled_network(tmp_path: Path) -> None:
    """Each of the three parts changes the function, in every predecoder type that has a head."""
    gnn = {"type": "gnn", "gnn": {"hidden": 4}}
    parts = [{"gnn": {"hidden": 4, "message_fn": "custom"}}, {"gnn": {"hidden": 4, "aggregation": "custom"}}]
    heads = [{"type": family, family: {}} for family in ("mlp", "conv")]
    configs = [gnn, *(gnn | part for part in parts), gnn | {"head": "custom"}, CUSTOM]
    configs += [config | {"head": head} for config in heads for head in ("linear", "custom")]
    lines = compiled(tmp_path, [GOOD], *configs)[0].splitlines()
    shapes, sums = zip(*(line.rsplit(" ", 1) for line in lines), strict=True)
    assert set(shapes) == {"(2, 55)"}
    assert len(set(sums[:5])) == 5 and sums[5] != sums[6] and sums[7] != sums[8]


class Sliced(nn.Module):
    """Computes the base function and drops the last channel."""

    def __init__(self, kind: str, *sizes: int) -> None:
        super().__init__()
        self.kind = kind
        self.out = nn.Linear(sizes[0], sizes[-1])

    def forward(self, *given: Any) -> torch.Tensor:
        if self.kind == "Aggregation":
            message, dst, n = given
            return message.new_zeros(len(message), n, message.shape[2]).index_add(1, dst, message)[..., :-1]
        return self.out(given[0])[..., :-1]


@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        ("MessageFn", (4,), "MessageFn returned (2, 5, 3), expected (2, 5, 4)"),
        ("Aggregation", (4,), "Aggregation returned (2, 3, 3), expected (2, 3, 4)"),
        ("Head", (4, 7), "Head returned (2, 3, 6), expected (2, 3, 7)"),
    ],
)
def test_wrong_shape_names_actual_and_expected_shape(kind: str, sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ContractError, match=re.escape(message)):
        _smoke_test(kind, Sliced(kind, *sizes), sizes)


INVALID = {
    "MessageFn returned (2, 2, 4), expected (2, 5, 4)": ("+ strength", "[:, :2]"),
    "not finite": ("+ strength", "* float('nan')"),
    "fails on a small batch": ("self.mix(torch", "self.none(torch"),
    "has no class Head": ("class Head(nn.Module)", "class Heads(nn.Module)"),
    "does not propagate gradients": ("return self.out(h)", "return self.out(h.detach()).detach()"),
}


def test_missing_code_and_code_with_invalid_results_are_refused(tmp_path: Path) -> None:
    changed = [GOOD.replace(*change) for change in INVALID.values()]
    missing, *answers = compiled(tmp_path, [None, *changed], CUSTOM)
    assert missing.startswith("REFUSED") and "write class" in missing
    for answer, message in zip(answers, INVALID, strict=True):
        assert answer.startswith("REFUSED") and message in answer
