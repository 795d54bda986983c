"""`autoqec models`: verified models that come with the package."""

from __future__ import annotations

import click

from autoqec.cli.common import Output, options
from autoqec.contracts.events import ignore
from autoqec.models import load_models, model_path, model_report, verify_model
from autoqec.reporting.text import effect_line, interval, member_line, percent


@click.group("models", invoke_without_command=True)
@options
@click.pass_context
def command(context: click.Context, /, out: Output) -> None:
    """List the verified models in the package; `decode --model NAME` and sinter use them without a run."""
    if context.invoked_subcommand is None:
        _list(out)


@command.command("list")
@options
def list_models(out: Output) -> None:
    """List the models, as `autoqec models` does."""
    _list(out)


def _list(out: Output) -> None:
    """Print one line per model: circuit, gain over the strongest baseline, and its shots."""
    models = load_models()
    name_width = max(map(len, models), default=0)
    env_width = max((len(model_report(name).env_name) for name in models), default=0)
    for name, model in models.items():
        report = model_report(name)
        strongest = min(report.panel, key=lambda baseline: baseline.rate.rate)
        effect = strongest.against
        gain = f"{percent(effect.relative)} {interval(effect.relative_low, effect.relative_high)}"
        errors = f"{effect.counts.errors_reference} → {effect.counts.errors_candidate} of {effect.counts.shots:,} shots"
        sizes = "; any distance and rounds" if model.translation_invariant else ""
        circuit = f"{report.env_name:{env_width}}  p={effect.p}"
        out.say(f"{name:{name_width}}  {circuit}  {gain} against {strongest.name} ({errors}){sizes}")
        out.emit({**model.dump(), "path": str(model_path(name))})
    out.say("Columns: model; env that it was verified on; fewer failures than its strongest baseline [95% interval].")
    out.say("autoqec models show NAME: the claim, every baseline and circuit, files")


@command.command("show", short_help="Show claim, error counts and files of models NAME.")
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@options
def show(names: tuple[str, ...], out: Output) -> None:
    """Show claim, error counts, circuits of the family and files of models NAME."""
    for name in names:
        path, report = model_path(name), model_report(name)
        model = load_models()[name]
        out.say(f"{name}: {model.claim}")
        for baseline in report.panel:
            out.say(f"  {effect_line(baseline.name, baseline.against)}")
        for member in report.members:
            out.say(f"  {member_line(member)}")
        if model.translation_invariant:
            out.say("  decodes other distances and numbers of rounds too: decode --model NAME --dem FILE")
        out.say(f"  {path}, {path.stat().st_size:,} bytes, SHA-256 {model.checkpoint_sha256[:12]}…, {model.licence}")
        out.say(f"  made with `{model.made_with}`; archive SHA-256 {model.archive_sha256[:12]}…")
        out.emit({**model.dump(), "path": str(path)})


@command.command("path", short_help="Print the path of the checkpoint of model NAME.")
@click.argument("name")
@options
def path(name: str, out: Output) -> None:
    """Print the checkpoint of model NAME, after comparing its hash and that of its env."""
    found = model_path(name)
    out.say(str(found))
    out.emit({"name": name, "path": str(found)})


@command.command("verify", short_help="Repeat the verification of model NAME, offline.")
@click.argument("name")
@options
def verify(name: str, out: Output) -> None:
    """Repeat the verification of model NAME from the secret in its archive, offline.

    Exit status: 0 it agrees with the report, 1 it does not, 2 a file was changed.
    """
    out.note(f"Restoring the run of {name} and decoding the shots of its verification again.")
    agrees, outcome = verify_model(name, ignore)
    out.say(f"{name}: {outcome}")
    out.emit({"name": name, "agrees": agrees, "found": outcome})
    if not agrees:
        raise click.exceptions.Exit(1)
