"""`autoqec measure`: failures of one checkpoint on several distances, numbers of rounds and error rates."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoqec.cli.common import Output, options
from autoqec.errors import UsageError
from autoqec.orchestrator.checkpoints import open_checkpoint
from autoqec.reporting.text import interval, percent

if TYPE_CHECKING:
    from autoqec.decoders.family import Member, MemberEffect

KEYS = {"d": "distance", "r": "rounds", "p": "p"}
PART = re.compile(r"\s*([drp])\s*=\s*([0-9.eE+-]+)\s*")
AT_HINT = "write for example --at d=7,r=7,p=0.005"


@click.command("measure")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option(
    "--at",
    "circuits",
    multiple=True,
    metavar="d=D,r=R,p=P",
    help="Distance, rounds and error rate of a circuit; values left out are those of the env. Repeatable.",
)
@click.option("--shots", type=click.IntRange(min=1), default=20_000, show_default=True, help="Fresh shots per circuit.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Selects the shots.")
@click.option("--env", "env_name", metavar="ENV", help="Env of a checkpoint outside a run.")
@click.option("--trust-code", is_flag=True, help="Run code that the branch of the round changed, outside the sandbox.")
@click.option("--unverified", is_flag=True, help="Also accept a checkpoint that is not a verified artifact.")
@options
def command(
    checkpoint: Path,
    circuits: tuple[str, ...],
    shots: int,
    seed: int,
    env_name: str | None,
    trust_code: bool,
    unverified: bool,
    out: Output,
) -> None:
    """Compare CHECKPOINT (a round directory, or a checkpoint.pt) with matching on fresh shots of several circuits.

    Circuits with another distance or number of rounds need a checkpoint of type `local`. The intervals of all circuits
    and references hold together, with the error probability `protocol.alpha` of the env. The seeds are public, so the
    result is a measurement and not a verdict.
    """
    with open_checkpoint(checkpoint, env_name, trust_code=trust_code, unverified=unverified) as loaded:
        from autoqec.decoders import family

        target = family.target_member(loaded.env)
        members = [parse_member(text, target) for text in circuits] or [target]
        family.check_members(loaded.env, loaded.path, members)
        if not loaded.verified:
            out.note("warning: this checkpoint is not a verified artifact")
        results = []
        for result in family.evaluate_members(loaded.env, loaded.path, members, shots=shots, seed=seed):
            results.append(result)
            out.note(f"{result.member}: {shots} shots decoded")
        alpha = loaded.env.protocol.alpha
    n_intervals = sum(len(result.effects) for result in results)
    _print_table(results, alpha, n_intervals, out)
    out.emit(
        {
            "shots": shots,
            "seed": seed,
            "verified": loaded.verified,
            "confidence": family.simultaneous_confidence(alpha, n_intervals),
            "members": [_member_fields(result) for result in results],
        }
    )


def parse_member(text: str, target: Member) -> Member:
    """Read `d=7,r=7,p=0.005`; values left out are those of `target`.

    Raises:
        UsageError: The text has another form.
    """
    values: dict[str, Any] = {}
    for part in text.split(","):
        found = PART.fullmatch(part)
        if found is None or KEYS[found[1]] in values:
            raise UsageError(f"{part!r} is not one of d=…, r=… and p=…, each once", location="--at", hint=AT_HINT)
        try:
            values[KEYS[found[1]]] = float(found[2]) if found[1] == "p" else int(found[2])
        except ValueError as error:
            raise UsageError(f"{found[2]!r} is not a number for {found[1]}", location="--at", hint=AT_HINT) from error
    return replace(target, **values)


def _print_table(results: list[MemberEffect], alpha: float, n_intervals: int, out: Output) -> None:
    from autoqec.decoders.family import outcome

    references = [effect.reference for effect in results[0].effects]
    heads = ["circuit", "trained", "shots", *references, "predecoder", *(f"fewer than {name}" for name in references)]
    rows = [
        [
            str(result.member),
            "yes" if result.trained else "no",
            str(result.effects[0].counts.shots),
            *(str(effect.counts.errors_reference) for effect in result.effects),
            str(result.effects[0].counts.errors_candidate),
            *(f"{percent(e.relative)} {interval(e.relative_low, e.relative_high)}".strip() for e in result.effects),
        ]
        for result in results
    ]
    for row in (heads, ["---"] * len(heads), *rows):
        out.say(f"| {' | '.join(row)} |")
    out.say(f"All {n_intervals} intervals hold together with probability {1 - alpha:g} (Bonferroni).")
    for index, name in enumerate(references):
        for state in ("fewer", "more", "not shown"):
            members = [str(result.member) for result in results if outcome(result.effects[index]) == state]
            words = "no difference shown from" if state == "not shown" else f"{state} failures than"
            if members:
                out.say(f"{words} {name}: {'; '.join(members)}")


def _member_fields(result: MemberEffect) -> dict[str, Any]:
    from autoqec.decoders.family import outcome

    effects = [effect.dump() | {"outcome": outcome(effect)} for effect in result.effects]
    return {**asdict(result.member), "trained": result.trained, "effects": effects}
