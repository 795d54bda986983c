"""`autoqec add-env`: create an env file and check it by sampling and decoding."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from autoqec.cli.common import Output, options, trust_option
from autoqec.cli.env_noise import NAMED_MODELS, noise_config
from autoqec.cli.new_env import HELP, SHOTS, SLOW_SHOTS, NewEnv, extension_options
from autoqec.errors import UsageError

MATRICES = ("hx", "hz", "lx", "lz")
GENERATED = ("surface_code:", "repetition_code:", "color_code:")
KINDS = {".stim": "stim_file", ".dem": "dem_file", ".yaml": "css_file", ".yml": "css_file"}
FILE, NUMBER = click.Path(path_type=Path), click.IntRange(1)


class _Command(click.Command):
    """A command that also has the options of installed kinds of code."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters; those of extensions are imported only for this command."""
        return [*(option for found in extension_options() for option in found.options), *super().get_params(ctx)]


@click.command("add-env", cls=_Command)
@click.argument("name", required=False)
@click.option(
    "--code", help="Task of stim (surface_code:rotated_memory_z, …), bivariate_bicycle, or a .stim, .dem or .yaml file."
)
@click.option("--distance", type=NUMBER, help="Code distance, for tasks of stim.")
@click.option(
    "--rounds",
    type=NUMBER,
    help="QEC rounds; default: the distance, 6 for bivariate_bicycle, 1 for a file and for code_capacity.",
)
@click.option(
    "--basis", type=click.Choice(["z", "x"]), help="Memory basis, for matrices and bivariate_bicycle; default: z."
)
@click.option("--hx", type=FILE, help="Matrix of the X checks: .npy, .npz, .mtx or text.")
@click.option("--hz", type=FILE, help="Matrix of the Z checks.")
@click.option("--lx", type=FILE, help="X logicals; default: computed.")
@click.option("--lz", type=FILE, help="Z logicals; default: computed.")
@click.option("--p", "points", metavar="P,P,…", help="Physical error rates.")
@click.option("--target", type=float, help="Error rate of the search, one of --p; default: the middle one.")
@click.option(
    "--noise",
    type=click.Choice(NAMED_MODELS),
    help="Noise model of generated circuits; default: circuit_depolarizing.",
)
@click.option("--eta", type=float, help="Bias towards Z errors; default: depolarizing noise.")
@click.option(
    "--channels",
    metavar="NAME=FACTOR,…",
    help="Noise with channels of different strengths: p times FACTOR for gate, measurement, reset, data; default: 1.",
)
@click.option(
    "--noise-file",
    type=FILE,
    help="JSON file with the 25 noise parameters of NVIDIA's Ising-Decoding, for surface codes; --p scales them.",
)
@click.option(
    "--backend",
    type=click.Choice(["mwpm", "bposd", "bplsd"]),
    help="Inner decoder; default: mwpm if the code has a matching graph.",
)
@click.option(
    "--baselines", metavar="NAME,NAME,…", help="Decoders to compare with; default: mwpm,mwpm_correlated or bposd_cs10."
)
@click.option(
    "--shots",
    type=NUMBER,
    help=f"Shots of the check; default: {SHOTS}, or {SLOW_SHOTS} without a matching graph.",
)
@click.option("--out", "target_file", type=FILE, help="Env file; default: NAME.yaml.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@trust_option()
@options
def command(name: str | None, target_file: Path | None, force: bool, out: Output, **given_options: Any) -> None:
    """Create the env file NAME.yaml and check it by sampling and decoding shots.

    In a terminal, missing values are prompted for.
    """
    name = name or _ask("Name of the env", "NAME")
    path = target_file or Path(f"{name}.yaml")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError("is not a file in an existing directory", location=str(path), hint="choose another --out")
    if path.exists() and not force:
        hint = "add --force to replace it, or choose another --out"
        raise UsageError("already exists", location=str(path), hint=hint)
    new_env = NewEnv(name, path, given_options, out)
    for found in extension_options():
        selects, *others = found.names
        if given_options[selects] is not None:
            names = ("code", "distance", "rounds", "basis", *MATRICES)
            new_env.reject(names, f"cannot be combined with --{selects}")
            found.create(new_env)
            return
        new_env.reject(tuple(others), f"needs --{selects}")
    code = _code(new_env)
    new_env.write(code, noise_config(given_options, code["kind"], _ask))


def _code(new_env: NewEnv) -> dict[str, Any]:
    """Return the env's `code`; prompt for what the options leave open."""
    given = new_env.options
    if any(given[name] is not None for name in MATRICES):
        return _matrices(new_env)
    tasks = "surface_code:rotated_memory_z or another task of stim"
    question_text = f"Code: {tasks}, bivariate_bicycle, or a file (.stim, .dem, .yaml)"
    code = given["code"] or _ask(question_text, "--code")
    rounds, basis = given["rounds"], given["basis"] or "z"
    if code == "bivariate_bicycle":
        _reject_others(new_env, code, "rounds", "basis")
        return {"kind": code, "rounds": rounds or 6, "basis": basis}
    if code.startswith(GENERATED):
        _reject_others(new_env, code, "distance", "rounds")
        distance = given["distance"] or _number("Distance", "--distance", 5)
        rounds = rounds or (1 if given["noise"] == "code_capacity" else distance)
        return {"kind": "stim_generator", "task": code, "distance": distance, "rounds": rounds}
    kind = KINDS.get(Path(code).suffix)
    if kind is None:
        message = f"{code!r} is neither a task of stim nor bivariate_bicycle nor a file of a known kind"
        hint = f"use a file ending in {', '.join(KINDS)}, or give --hx and --hz"
        raise UsageError(message, location="--code", hint=hint)
    relative_path = os.path.relpath(code, new_env.path.parent)
    if kind == "css_file":
        _reject_others(new_env, code, "basis")
        return {"kind": kind, "path": relative_path, "basis": basis}
    _reject_others(new_env, code, "rounds")
    return {"kind": kind, "path": relative_path, "rounds": rounds or 1}


def _reject_others(new_env: NewEnv, code: str, *used: str) -> None:
    """Raise UsageError if an option for codes of another kind was given."""
    others = tuple(name for name in ("distance", "rounds", "basis") if name not in used)
    new_env.reject(others, f"does not apply to {code}")


def _matrices(new_env: NewEnv) -> dict[str, Any]:
    """Return a `code` that holds the matrices of the given files."""
    from autoqec.qec.matrices import css_text, read_matrix

    given = {name: new_env.options[name] for name in MATRICES if new_env.options[name] is not None}
    hint = "give --hx and --hz, or --code alone"
    for name in ("hx", "hz"):
        if name not in given:
            raise UsageError(f"is required with --{', --'.join(given)}", location=f"--{name}", hint=hint)
    if new_env.options["code"]:
        raise UsageError("cannot be combined with matrices", location="--code", hint=hint)
    _reject_others(new_env, "check matrices", "basis")
    text = css_text({name: read_matrix(file) for name, file in given.items()})
    basis = new_env.options["basis"] or "z"
    return {"kind": "css_file", "path": new_env.path.name, "text": text, "basis": basis}


def is_interactive() -> bool:
    """Return whether stdin is a terminal."""
    return sys.stdin.isatty()


def _ask(question: str, option: str, default: str | None = None) -> str:
    if not is_interactive():
        raise UsageError("is missing", location=option, hint=HELP)
    answer: str = click.prompt(question, default=default, err=True)
    return answer


def _number(question: str, option: str, default: int) -> int:
    answer = _ask(question, option, str(default))
    if not answer.isdecimal():
        raise UsageError(f"{answer!r} is not a whole number", location=option, hint=f"{option} {default}")
    return int(answer)
