"""`autoqec models`: verified models that come with the package."""

from __future__ import annotations

import click

from autoqec.cli.common import Output, options


@click.group("models", invoke_without_command=True)
@options
@click.pass_context
def command(context: click.Context, /, out: Output) -> None:
    """List the verified models in the package; `decode --model NAME` and sinter use them without a run."""
    if context.invoked_subcommand is not None:
        return
    from autoqec.models import load_models, model_path, model_report
    from autoqec.reporting.text import effect_line, member_line

    for name, model in load_models().items():
        path, report = model_path(name), model_report(name)
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


@command.command("path")
@click.argument("name")
@options
def path(name: str, out: Output) -> None:
    """Print the checkpoint of model NAME, after comparing its hash and that of its env."""
    from autoqec.models import model_path

    found = model_path(name)
    out.say(str(found))
    out.emit({"name": name, "path": str(found)})


@command.command("verify")
@click.argument("name")
@options
def verify(name: str, out: Output) -> None:
    """Repeat the verification of model NAME from the secret in its archive, offline.

    Exit status: 0 it agrees with the report, 1 it does not, 2 a file was changed.
    """
    from autoqec.contracts.events import ignore
    from autoqec.models import verify_model

    out.note(f"Restoring the run of {name} and decoding the shots of its verification again.")
    agrees, outcome = verify_model(name, ignore)
    out.say(f"{name}: {outcome}")
    out.emit({"name": name, "agrees": agrees, "found": outcome})
    if not agrees:
        raise click.exceptions.Exit(1)
