"""`autoqec add-env`: create an env file and check it by sampling and decoding."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoqec.cli.common import Output, options, trust_option
from autoqec.cli.env_defaults import SEED_BANDS, default_baselines
from autoqec.cli.env_noise import NAMED_MODELS, noise_config, split_list
from autoqec.errors import UsageError
from autoqec.reporting.text import pluralize

if TYPE_CHECKING:
    from autoqec.contracts.env import EnvSpec
    from autoqec.extensions.recorded.shots import RecordedShots

RECORDED_OPTIONS = ("block_shots", "candidates")
MATRICES = ("hx", "hz", "lx", "lz")
GENERATED = ("surface_code:", "repetition_code:", "color_code:")
HELP = "autoqec add-env --help"
MIN_BASELINE_ERRORS = 30  # with fewer logical errors of the baseline a gain is hard to detect
SLOW_SHOTS, SHOTS = 300, 20_000  # default shots of the check: without and with a matching graph


@click.command("add-env")
@click.argument("name", required=False)
@click.option(
    "--code", help="Task of stim (surface_code:rotated_memory_z, …), bivariate_bicycle, or a .stim, .dem or .yaml file."
)
@click.option(
    "--recorded",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of recorded shots, whose circuit becomes the code; the shots are checked against it.",
)
@click.option(
    "--block-shots",
    type=click.IntRange(1),
    help="With --recorded: successive shots that are one unit of the test; default: 20 blocks per candidate.",
)
@click.option(
    "--candidates",
    type=click.IntRange(1, 100),
    help="With --recorded: candidates among which the sealed test blocks are divided; default: 4.",
)
@click.option("--distance", type=click.IntRange(1), help="Code distance, for tasks of stim.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help="QEC rounds; default: the distance, 6 for bivariate_bicycle, 1 for a file and for code_capacity.",
)
@click.option(
    "--basis", type=click.Choice(["z", "x"]), help="Memory basis, for matrices and bivariate_bicycle; default: z."
)
@click.option("--hx", type=click.Path(path_type=Path), help="Matrix of the X checks: .npy, .npz, .mtx or text.")
@click.option("--hz", type=click.Path(path_type=Path), help="Matrix of the Z checks.")
@click.option("--lx", type=click.Path(path_type=Path), help="X logicals; default: computed.")
@click.option("--lz", type=click.Path(path_type=Path), help="Z logicals; default: computed.")
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
    type=click.Path(path_type=Path),
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
    type=click.IntRange(1),
    help=f"Shots of the check; default: {SHOTS}, or {SLOW_SHOTS} without a matching graph.",
)
@click.option("--out", "target_file", type=click.Path(path_type=Path), help="Env file; default: NAME.yaml.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@trust_option()
@options
def command(
    name: str | None, target_file: Path | None, force: bool, shots: int | None, out: Output, **given_options: Any
) -> None:
    """Create the env file NAME.yaml and check it by sampling and decoding shots.

    In a terminal, missing values are prompted for.
    """
    name = name or _ask("Name of the env", "NAME")
    path = target_file or Path(f"{name}.yaml")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError("is not a file in an existing directory", location=str(path), hint="choose another --out")
    if path.exists() and not force:
        raise UsageError(
            "already exists", location=str(path), hint="add --force to replace it, or choose another --out"
        )
    directory = given_options["recorded"]
    _check_recorded_options(given_options)
    spec: dict[str, Any] = {"name": name, "code": {}, "noise": {}, "seed_policy": SEED_BANDS}
    if directory is None:
        spec["code"] = _code(given_options, path)
        spec["noise"] = noise_config(given_options, spec["code"]["kind"], _ask)
        _write(spec, given_options, path, shots, out)
    else:
        spec["noise"] = noise_config(given_options, "recorded_shots", _ask)
        _write_recorded(spec, directory, given_options, path, shots, out)


def _check_recorded_options(given_options: dict[str, Any]) -> None:
    """Raise UsageError for options that do not apply with, or without, --recorded."""
    if given_options["recorded"] is None:
        unused = [f"--{name.replace('_', '-')}" for name in RECORDED_OPTIONS if given_options[name] is not None]
        if unused:
            raise UsageError("needs --recorded", location=unused[0], hint=f"remove {', '.join(unused)}")
        return
    names = ("code", "distance", "rounds", "basis", *MATRICES)
    unused = [f"--{name}" for name in names if given_options[name] is not None]
    if unused:
        hint = f"remove {', '.join(unused)}; rounds of the experiment belong into recorded.yaml"
        raise UsageError("cannot be combined with --recorded", location=unused[0], hint=hint)


def _write_recorded(
    spec: dict[str, Any], directory: Path, given_options: dict[str, Any], path: Path, shots: int | None, out: Output
) -> None:
    """Check recorded shots; write the env with its manifest and estimated model, or none of them."""
    from autoqec.extensions.recorded.commands.recorded_shots import diagnose, open_recorded, shown_progress
    from autoqec.extensions.recorded.decoding import baseline_names
    from autoqec.extensions.recorded.env import manifest_path_of, require_fit, write_models
    from autoqec.store.files import load_env

    recorded, problem, _ = open_recorded(directory)
    predicted = baseline_names(recorded)
    existed = path.exists()
    checks = diagnose(recorded, problem, out)
    require_fit(checks, directory)
    counts = tuple(0 if check.counts is None else check.counts.shots for check in checks)
    division = (given_options["block_shots"], given_options["candidates"])
    try:
        with shown_progress(out) as progress:
            code = write_models(recorded, problem, counts, path, *division, progress)
        spec["code"] = code.model_dump(exclude_none=True, exclude={"manifest", "text", "estimated"})
        _write(spec, given_options, path, shots, out, predicted)
    except BaseException:
        if not existed:
            for written in (manifest_path_of(path), path.with_name(f"{path.stem}.estimated.dem")):
                written.unlink(missing_ok=True)
        raise
    out.say(f"{manifest_path_of(path)}: hashes of {pluralize(len(recorded.names), 'file')} of recorded shots")
    out.say(f"{path.stem}.estimated.dem: model estimated from the training shots")
    if named := [name for name in predicted if name in spec["baselines"]]:
        out.say(f"predictions among the baselines, which a verified gain must beat: {', '.join(named)}")
        _warn_of_predictions_without_errors(recorded, load_env(path)[0], out)


def _warn_of_predictions_without_errors(recorded: RecordedShots, env: EnvSpec, out: Output) -> None:
    from autoqec.contracts.env import PREDICTED
    from autoqec.extensions.recorded.decoding import without_errors
    from autoqec.extensions.recorded.split import Split

    assert env.recorded is not None and env.recorded.manifest is not None
    visible = 0, Split.of(env.recorded).validation[1]  # sealed shots are not scored before they are tested on
    for name in without_errors(recorded, env.recorded.manifest.shots, visible, env.predicted_by):
        message = f"{PREDICTED}{name} makes no errors on the {visible[1]} training and validation shots"
        out.note(
            f"warning: {message}: no gain over it can be shown; if its files hold the recorded flips, remove them, or "
            "choose --baselines"
        )


def _write(
    spec: dict[str, Any],
    given_options: dict[str, Any],
    path: Path,
    shots: int | None,
    out: Output,
    predicted: tuple[str, ...] = (),
) -> None:
    from autoqec.contracts.env import ESTIMATED, GRAPH_BACKENDS
    from autoqec.qec.env_summary import suggest_backend, summarize_env
    from autoqec.store import atomic
    from autoqec.store.files import dump_config, env_from_data, load_env

    location = f"env {spec['name']}"
    backend = given_options["backend"]
    if backend is None:
        backend = suggest_backend(env_from_data(spec, location=location, directory=path.parent, hint=HELP))
        out.note(
            f"backend {backend}: " + ("the code has a matching graph" if backend == "mwpm" else "no matching graph")
        )
    spec |= {"backend": backend, "baselines": split_list(given_options["baselines"]) or default_baselines(backend)}
    if spec["code"]["kind"] == "recorded_shots" and backend == "mwpm" and given_options["baselines"] is None:
        spec["baselines"] = [*GRAPH_BACKENDS, *ESTIMATED, *predicted]
    env = env_from_data(spec, location=location, directory=path.parent, hint=HELP)
    env_summary = summarize_env(env, shots or (SHOTS if backend == "mwpm" else SLOW_SHOTS))
    atomic.write_text(path, dump_config(spec))
    assert load_env(path)[0] == env  # the file holds what was checked
    sizes = (
        (env_summary.n_detectors, "detector"),
        (env_summary.n_observables, "observable"),
        (env_summary.n_mechanisms, "mechanism"),
    )
    out.say(f"{path}: {', '.join(pluralize(number, noun) for number, noun in sizes)}")
    out.say(f"predecoder: inputs {env_summary.inputs}, {env_summary.n_variables} log-odds per shot")
    if env_summary.distance_bound is not None:
        out.say(f"distance: at most {env_summary.distance_bound} (length of the shortest graphlike logical error)")
    width = max(map(len, env_summary.rates))
    for decoder, rate in env_summary.rates.items():
        ler = f"LER {rate.low:.2e} to {rate.high:.2e} (95%)"
        out.say(f"{decoder:{width}}  {rate.errors} errors in {rate.shots} shots: {ler}")
    plain = env_summary.rates[env.plain]
    if plain.errors < MIN_BASELINE_ERRORS:
        out.note(
            f"fewer than {MIN_BASELINE_ERRORS} logical errors of {env.plain}: a gain would be hard to detect; "
            "raise p, or use more --shots"
        )
    out.say(f"Next: autoqec run {path} --profile smoke --rounds 1")
    rates = {decoder: rate.dump() for decoder, rate in env_summary.rates.items()}
    figures = {key: value for key, value in vars(env_summary).items() if key != "rates"}
    out.emit({"path": str(path), "env": env.dump(), **figures, "rates": rates})


def _code(given_options: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the env's `code`; prompt for what the options leave open."""
    given = {name: given_options[name] for name in MATRICES if given_options[name] is not None}
    if given:
        return _matrices(given, given_options, path)
    tasks = "surface_code:rotated_memory_z or another task of stim"
    question_text = f"Code: {tasks}, bivariate_bicycle, or a file (.stim, .dem, .yaml)"
    code = given_options["code"] or _ask(question_text, "--code")
    basis = given_options["basis"] or "z"
    if code == "bivariate_bicycle":
        _reject_other_options(given_options, code, "rounds", "basis")
        return {"kind": code, "rounds": given_options["rounds"] or 6, "basis": basis}
    if code.startswith(GENERATED):
        _reject_other_options(given_options, code, "distance", "rounds")
        distance = given_options["distance"] or _number("Distance", "--distance", 5)
        return {
            "kind": "stim_generator",
            "task": code,
            "distance": distance,
            "rounds": given_options["rounds"] or (1 if given_options["noise"] == "code_capacity" else distance),
        }
    kinds = {".stim": "stim_file", ".dem": "dem_file", ".yaml": "css_file", ".yml": "css_file"}
    file = Path(code)
    if file.suffix not in kinds:
        message = f"{code!r} is neither a task of stim nor bivariate_bicycle nor a file of a known kind"
        raise UsageError(
            message, location="--code", hint=f"use a file ending in {', '.join(kinds)}, or give --hx and --hz"
        )
    import os

    relative_path = os.path.relpath(file, path.parent)
    _reject_other_options(given_options, code, "basis" if kinds[file.suffix] == "css_file" else "rounds")
    if kinds[file.suffix] == "css_file":
        return {"kind": "css_file", "path": relative_path, "basis": basis}
    return {"kind": kinds[file.suffix], "path": relative_path, "rounds": given_options["rounds"] or 1}


def _reject_other_options(given_options: dict[str, Any], code: str, *used: str) -> None:
    """Raise UsageError if an option for codes of another kind was given."""
    unused = [
        f"--{name}" for name in ("distance", "rounds", "basis") if given_options[name] is not None and name not in used
    ]
    if unused:
        raise UsageError(f"does not apply to {code}", location=unused[0], hint=f"remove {', '.join(unused)}")


def _matrices(given: dict[str, Path], given_options: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a `code` that holds the matrices of the given files."""
    from autoqec.qec.matrices import css_text, read_matrix

    missing = [f"--{name}" for name in ("hx", "hz") if name not in given]
    if missing or given_options["code"]:
        message = f"is required with --{', --'.join(given)}" if missing else "cannot be combined with matrices"
        raise UsageError(
            message, location=missing[0] if missing else "--code", hint="give --hx and --hz, or --code alone"
        )
    _reject_other_options(given_options, "check matrices", "basis")
    text = css_text({name: read_matrix(file) for name, file in given.items()})
    return {"kind": "css_file", "path": path.name, "text": text, "basis": given_options["basis"] or "z"}


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
