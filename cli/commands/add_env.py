"""`autoqec add-env`: asks, checks by building and decoding, and writes one env file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from autoqec.cli.common import Out, options, trust_option
from autoqec.errors import InputError
from autoqec.reporting.text import counted

MATRICES = ("hx", "hz", "lx", "lz")
GENERATED = ("surface_code:", "repetition_code:", "color_code:")
BANDS = {"train": [0, 999_999_999], "val": [1_000_000_000, 1_999_999_999], "holdout": [2_000_000_000, 2_999_999_999]}
HELP = "autoqec add-env --help"
FEW = 30  # errors of the plain backend below which little could be seen
SLOW_SHOTS, SHOTS = 300, 20_000  # of the check, where no number is named


@click.command("add-env")
@click.argument("name", required=False)
@click.option("--code", help="A task of stim's, bivariate_bicycle, or a file: .stim, .dem, .yaml with hx and hz.")
@click.option("--distance", type=click.IntRange(1), help="Of stim's tasks.")
@click.option("--rounds", type=click.IntRange(1), help="Default: the distance; 6 for bivariate_bicycle, 1 for a file.")
@click.option("--basis", type=click.Choice(["z", "x"]), help="Of matrices and bivariate_bicycle; default: z.")
@click.option("--hx", type=click.Path(path_type=Path), help="Matrix of the X checks: .npy, .npz, .mtx or rows of text.")
@click.option("--hz", type=click.Path(path_type=Path), help="Matrix of the Z checks.")
@click.option("--lx", type=click.Path(path_type=Path), help="X logicals; found where left out.")
@click.option("--lz", type=click.Path(path_type=Path), help="Z logicals; found where left out.")
@click.option("--p", "points", metavar="P,P,…", help="Physical error rates; the target is among them.")
@click.option("--target", type=float, help="The rate to search at; default: the middle one.")
@click.option("--eta", type=float, help="Bias to phase flips; default: none, depolarizing.")
@click.option("--backend", type=click.Choice(["mwpm", "bposd", "bplsd"]), help="Default: mwpm where there is a graph.")
@click.option(
    "--baselines", metavar="NAME,NAME,…", help="To be shown beside; default: correlated matching, or OSD-CS 10."
)
@click.option("--shots", type=click.IntRange(1), help=f"Of the check; default: {SHOTS}, {SLOW_SHOTS} without a graph.")
@click.option("--out", "target_file", type=click.Path(path_type=Path), help="Default: NAME.yaml.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@trust_option()
@options
def command(name: str | None, target_file: Path | None, force: bool, shots: int | None, out: Out, **asked: Any) -> None:
    """Write an env file for NAME after building it and decoding shots of it.

    What is not said by an option is asked for, where somebody is there to answer.
    """
    name = name or _ask("Name of the env", "NAME")
    path = target_file or Path(f"{name}.yaml")
    if path.is_dir() or not path.parent.is_dir():
        raise InputError("is no place for a file", where=str(path), mend="name one with --out")
    if path.exists() and not force:
        raise InputError("is there already", where=str(path), mend="add --force to replace it, or name another --out")
    spec: dict[str, Any] = {"name": name, "code": _code(asked, path), "noise": {}, "seed_policy": BANDS}
    spec["noise"] = _noise(asked, spec["code"]["kind"])
    _write(spec, asked, path, shots, out)


def _write(spec: dict[str, Any], asked: dict[str, Any], path: Path, shots: int | None, out: Out) -> None:
    from autoqec.qec.env_summary import appraise, suggested_backend
    from autoqec.store import atomic
    from autoqec.store.files import dump_config, load_env, understood

    where = f"env {spec['name']}"
    backend = asked["backend"]
    if backend is None:
        backend = suggested_backend(understood(spec, where=where, directory=path.parent, mend=HELP))
        out.note(
            f"backend {backend}: " + ("the code has a matching graph" if backend == "mwpm" else "no matching graph")
        )
    default = ["mwpm", "mwpm_correlated"] if backend == "mwpm" else ["bposd_cs10"]
    spec |= {"backend": backend, "baselines": _words(asked["baselines"]) or default}
    env = understood(spec, where=where, directory=path.parent, mend=HELP)
    found = appraise(env, shots or (SHOTS if backend == "mwpm" else SLOW_SHOTS))
    atomic.write_text(path, dump_config(spec))
    assert load_env(path)[0] == env  # what was checked is what is written
    sizes = ((found.n_detectors, "detector"), (found.n_observables, "observable"), (found.n_faults, "mechanism"))
    out.say(f"{path}: {', '.join(counted(number, noun) for number, noun in sizes)}")
    out.say(f"a net reads `inputs: {found.inputs}` and gives {found.n_variables} log-odds a shot")
    if found.distance_bound is not None:
        out.say(f"{found.distance_bound} errors can flip an observable unseen: the distance is no larger")
    for decoder, one in found.rates.items():
        out.say(f"{decoder:16} {one.errors} errors in {one.shots} shots: LER {one.low:.2e} to {one.high:.2e} (95%)")
    plain = found.rates[env.plain]
    if plain.errors < FEW:
        out.note(
            f"fewer than {FEW} errors of the plain backend: a gain is hard to see; raise p, or check with more --shots"
        )
    out.say(f"Next: autoqec run {path} --profile smoke --rounds 1")
    rates = {decoder: one.dump() for decoder, one in found.rates.items()}
    figures = {key: value for key, value in vars(found).items() if key != "rates"}
    out.emit({"path": str(path), "env": env.dump(), **figures, "rates": rates})


def _code(asked: dict[str, Any], path: Path) -> dict[str, Any]:
    """The env's `code`, asked for where the options leave it open."""
    given = {name: asked[name] for name in MATRICES if asked[name] is not None}
    if given:
        return _matrices(given, asked, path)
    tasks = "surface_code:rotated_memory_z or another task of stim's"
    words = f"Code: {tasks}, bivariate_bicycle, or a file (.stim, .dem, .yaml)"
    code = asked["code"] or _ask(words, "--code")
    basis = asked["basis"] or "z"
    if code == "bivariate_bicycle":
        _only(asked, code, "rounds", "basis")
        return {"kind": code, "rounds": asked["rounds"] or 6, "basis": basis}
    if code.startswith(GENERATED):
        _only(asked, code, "distance", "rounds")
        distance = asked["distance"] or _number("Distance", "--distance", 5)
        return {"kind": "stim_generator", "task": code, "distance": distance, "rounds": asked["rounds"] or distance}
    kinds = {".stim": "stim_file", ".dem": "dem_file", ".yaml": "css_file", ".yml": "css_file"}
    file = Path(code)
    if file.suffix not in kinds:
        what = f"{code!r} is no task of stim's, not bivariate_bicycle, and no file of a known kind"
        raise InputError(what, where="--code", mend=f"name a file ending in {', '.join(kinds)}, or give --hx and --hz")
    import os

    beside = os.path.relpath(file, path.parent)
    _only(asked, code, "basis" if kinds[file.suffix] == "css_file" else "rounds")
    if kinds[file.suffix] == "css_file":
        return {"kind": "css_file", "path": beside, "basis": basis}
    return {"kind": kinds[file.suffix], "path": beside, "rounds": asked["rounds"] or 1}


def _only(asked: dict[str, Any], code: str, *used: str) -> None:
    """InputError for an option that says something about codes of another kind."""
    said = [f"--{name}" for name in ("distance", "rounds", "basis") if asked[name] is not None and name not in used]
    if said:
        raise InputError(f"says nothing about {code}", where=said[0], mend=f"leave {', '.join(said)} out")


def _matrices(given: dict[str, Path], asked: dict[str, Any], path: Path) -> dict[str, Any]:
    """Matrices of other tools, their digits inside the env file."""
    from autoqec.qec.matrices import css_text, read_matrix

    missing = [f"--{name}" for name in ("hx", "hz") if name not in given]
    if missing or asked["code"]:
        what = f"is missing beside {', '.join(given)}" if missing else "says the code a second time"
        raise InputError(what, where=missing[0] if missing else "--code", mend="give --hx and --hz, or --code alone")
    _only(asked, "check matrices", "basis")
    text = css_text({name: read_matrix(file) for name, file in given.items()})
    return {"kind": "css_file", "path": path.name, "text": text, "basis": asked["basis"] or "z"}


def _noise(asked: dict[str, Any], kind: str) -> dict[str, Any]:
    if kind in ("stim_file", "dem_file"):
        said = [
            f"--{key}"
            for key, option in (("p", "points"), ("target", "target"), ("eta", "eta"))
            if asked[option] is not None
        ]
        if said:
            raise InputError(f"{kind} brings its own noise", where=said[0], mend=f"leave {', '.join(said)} out")
        return {"model": "from_file"}
    points = _words(asked["points"]) or _words(
        _ask("Physical error rates, with commas between", "--p", "0.003,0.005,0.01")
    )
    try:
        values = [float(point) for point in points]
    except ValueError as error:
        raise InputError(f"{','.join(points)} are no numbers", where="--p", mend="--p 0.003,0.005,0.01") from error
    if not values:
        raise InputError("names no rate", where="--p", mend="--p 0.003,0.005,0.01")
    target = sorted(values)[len(values) // 2] if asked["target"] is None else asked["target"]
    noise = {"model": "circuit_depolarizing", "p": values, "target_p": target}
    return noise if asked["eta"] is None else {**noise, "model": "circuit_biased", "eta": asked["eta"]}


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def attended() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty()


def _ask(question: str, option: str, default: str | None = None) -> str:
    if not attended():
        raise InputError("is missing", where=option, mend=f"name it; `{HELP}` lists what can be named")
    answer: str = click.prompt(question, default=default, err=True)
    return answer


def _number(question: str, option: str, default: int) -> int:
    answer = _ask(question, option, str(default))
    if not answer.isdecimal():
        raise InputError(f"{answer!r} is no number", where=option, mend=f"{option} {default}")
    return int(answer)
