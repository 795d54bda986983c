"""Compare a saved report with a repeated verification, field by field."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from autoqec.contracts.base import canonical_json
from autoqec.contracts.verdict import Guard, VerifyReport
from autoqec.verification.request import SHOTS_DIFFER

# Not determined by the shots: time and resources, and the machine itself. (History records the sandbox as well.)
MEASURED = {"finished_at", "judge_wallclock_s", "versions", "sandbox"}
MEASURED_COST = {
    "candidate_us_per_shot", "startup_cpu_s", "memory_growth_mb", "decoding_us_per_shot", "correlated_us_per_shot",
    "latency_us", "latency_failure", "cpu_model",
}  # fmt: skip
TEXTS = {"claim", "reasons", "not_tested", "guards"}
# Their evidence quotes rounding errors, resources or text of branch code, which differ between machines.
MACHINE_GUARDS = frozenset({"cost", "batch_independence", "complete", "repeatable"})
TOLERANCE = 1e-6  # relative: special functions differ in the last digits between versions of scipy
TEXT_TOLERANCE = 0.02  # of figures in texts, which have two digits or more
# Lines of `not_tested`: whether a composition could be compared depends on which parents were verified at the time, and
# whether single shots were answered in time depends on the machine.
OF_THE_MOMENT = ("synergy", "latency of single shots")
MAX_SHOWN = 160  # characters of a value in a difference
TextComparison = Callable[[str, str], bool]
# Shots with several matchings of minimum weight: which one is found may differ between versions of a matching library.
_TIES = re.compile(r"priors alone fix \d+ and break \d+")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def report_differences(saved: VerifyReport, replayed: VerifyReport) -> list[str]:
    """Return one line per difference that neither the machine nor the versions of libraries explain.

    Texts are compared also where the versions of libraries differ: `versions` are a statement of the report, which
    must not switch the comparison off.
    """
    agree: TextComparison = str.__eq__ if saved.versions == replayed.versions else _nearly_equal
    differences = [*_shot_differences(saved, replayed)]
    differences += _value_differences("", _determined(saved), _determined(replayed))
    differences += _guard_differences(saved, replayed, agree)
    differences += _text_differences(saved, replayed, agree)
    return differences


def _nearly_equal(saved: str, replayed: str) -> bool:
    """Return whether the wording is the same and the figures are, up to their last digits."""
    pairs = zip(_NUMBER.findall(saved), _NUMBER.findall(replayed), strict=False)
    return _NUMBER.sub("#", saved) == _NUMBER.sub("#", replayed) and all(
        math.isclose(float(recorded.replace(",", "")), float(repeated.replace(",", "")), rel_tol=TEXT_TOLERANCE)
        for recorded, repeated in pairs
    )


def _determined(report: VerifyReport) -> dict[str, Any]:
    """Return the fields that request and shots determine."""
    excluded = MEASURED | TEXTS | {"chunk_digests", "bundle_id"}
    fields = report.model_dump(mode="json", include=set(VerifyReport.model_fields) - excluded)
    if fields["cost"]:
        fields["cost"] = {name: value for name, value in fields["cost"].items() if name not in MEASURED_COST}
    return fields


def _shot_differences(saved: VerifyReport, replayed: VerifyReport) -> Iterator[str]:
    if saved.chunk_digests != replayed.chunk_digests:
        pairs = zip(saved.chunk_digests, replayed.chunk_digests, strict=False)
        first = next((recorded for recorded, repeated in pairs if recorded != repeated), "their number")
        stim = (saved.versions.get("stim"), replayed.versions.get("stim"))
        yield f"{SHOTS_DIFFER}, from {first} on (stim {stim[0]} in the report, {stim[1]} now)"
    elif saved.bundle_id != replayed.bundle_id:
        yield f"bundle_id was {saved.bundle_id}, is {replayed.bundle_id}"


def _value_differences(path: str, saved: Any, replayed: Any) -> Iterator[str]:
    if isinstance(saved, dict) and isinstance(replayed, dict):
        for name in dict.fromkeys([*saved, *replayed]):
            yield from _value_differences(f"{path}.{name}" if path else name, saved.get(name), replayed.get(name))
    elif isinstance(saved, list) and isinstance(replayed, list) and len(saved) == len(replayed):
        for index, (recorded, repeated) in enumerate(zip(saved, replayed, strict=True)):
            yield from _value_differences(f"{path}[{index}]", recorded, repeated)
    elif not _equal(saved, replayed):
        yield f"{path} was {_shown(saved)}, is {_shown(replayed)}"


def _equal(saved: Any, replayed: Any) -> bool:
    if isinstance(saved, float) and isinstance(replayed, (float, int)) or isinstance(replayed, float):
        numbers = isinstance(saved, (float, int))
        return numbers and math.isclose(saved, replayed, rel_tol=TOLERANCE, abs_tol=1e-12)
    return bool(saved == replayed)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else canonical_json(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _guard_differences(saved: VerifyReport, replayed: VerifyReport, agree: TextComparison) -> Iterator[str]:
    recorded, repeated = ({guard.name: guard for guard in report.guards} for report in (saved, replayed))
    if len(recorded) != len(saved.guards):
        yield "a guard is listed twice"
    for name in dict.fromkeys([*recorded, *repeated]):
        if name not in repeated:
            yield f"guard {name} is not among the guards"
        elif name not in recorded:
            yield f"guard {name} is missing"
        elif recorded[name].passed != repeated[name].passed:
            yield f"guard {name} passed was {_shown(recorded[name].passed)}, is {_shown(repeated[name].passed)}"
        elif not agree(_evidence(recorded[name]), _evidence(repeated[name])):
            yield f"guard {name} evidence was {_shown(recorded[name].evidence)}, is {_shown(repeated[name].evidence)}"


def _evidence(guard: Guard) -> str:
    """Return the part of the evidence that does not depend on the machine or on the choice between equal matchings."""
    if guard.name == "ablation":
        return _TIES.sub("priors alone", guard.evidence)
    if guard.name not in MACHINE_GUARDS:
        return guard.evidence
    return _NUMBER.sub("#", guard.evidence) if guard.passed else ""


def _text_differences(saved: VerifyReport, replayed: VerifyReport, agree: TextComparison) -> Iterator[str]:
    if not agree(saved.claim, replayed.claim) or _NUMBER.findall(saved.claim) != _NUMBER.findall(replayed.claim):
        yield f"claim was {_shown(saved.claim)}, is {_shown(replayed.claim)}"
    tripped = {guard.name for guard in saved.guards if not guard.passed}
    if not tripped & MACHINE_GUARDS and not agree("\n".join(saved.reasons), "\n".join(replayed.reasons)):
        yield f"reasons was {_shown(list(saved.reasons))}, is {_shown(list(replayed.reasons))}"
    recorded, repeated = (
        [line for line in report.not_tested if not line.startswith(OF_THE_MOMENT)] for report in (saved, replayed)
    )
    if not agree("\n".join(recorded), "\n".join(repeated)):
        yield f"not_tested was {_shown(recorded)}, is {_shown(repeated)}"
