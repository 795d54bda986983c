"""`autoqec envs`: list the packaged envs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from autoqec import locate
from autoqec.cli.common import Output, options
from autoqec.store.files import load_env

if TYPE_CHECKING:
    from autoqec.contracts.env import EnvSpec


@click.command("envs")
@options
def command(out: Output) -> None:
    """List the envs that come with the package; commands accept their names."""
    envs = locate.builtin_envs()
    generated = locate.generated_envs()
    width = max(map(len, (*envs, *generated)))
    for name, path in envs.items():
        env, _ = load_env(path)
        noise = ", ".join(f"{p:g}" for p in env.points if p is not None) or "from the file"
        target = "" if env.target is None else f" (target {env.target:g})"
        out.say(f"{name:{width}} {_code(env)}; p = {noise}{target}; against {', '.join(env.baselines)}")
        out.emit({"name": name, "path": str(path), "env": env.dump()})
    for name, (description, _) in generated.items():
        out.say(f"{name:{width}} {description}, generated in runs/ when first used")


def _code(env: EnvSpec) -> str:
    """Describe the code of an env in one line."""
    code = env.code
    if code.kind == "stim_generator":
        members = f"; family of {', '.join(map(str, code.members))}" if code.members else ""
        return f"{code.task} d={code.distance} rounds={code.rounds}{members}"
    return f"{getattr(code, 'path', code.kind)} rounds={code.rounds}"
