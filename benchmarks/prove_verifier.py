"""Measure error rates, power and resistance of the verification (`make prove-verifier`).

Counts are simulated: errors of the baseline decoder and the candidate are drawn as multinomial counts per chunk, then
pass through `verification.sequential.Monitor`, `qec.stats.paired_effect` and `verification.decision.decide` as in a
run. Cheats are real checkpoints in real candidate processes.
"""

from __future__ import annotations

import argparse
import datetime
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats as distributions

from autoqec.contracts.env import CircuitDepolarizing, EnvSpec, SeedPolicy, StimGeneratorCode
from autoqec.contracts.profiles import PROFILES
from autoqec.contracts.round import PairedCounts
from autoqec.contracts.verdict import PairedEffect, StoppedBy, Verdict
from autoqec.qec.stats import paired_effect
from autoqec.verification.decision import decide
from autoqec.verification.sequential import Monitor, e_lond_level
from autoqec.verification.session import simultaneous_effect
from autoqec.verification.shot_stream import CHUNK
from benchmarks.drift import drifting_streams
from benchmarks.table import HERE, Row, format_share, load, record

ROOT = HERE.parent
BACKENDS = ("bubblewrap", "landlock")
LER = 1e-2
STREAM = 20
ENV = EnvSpec(
    name="simulated",
    code=StimGeneratorCode(task="surface_code:rotated_memory_z", distance=5, rounds=5),
    noise=CircuitDepolarizing(p=(0.005,), target_p=0.005),
    seed_policy=SeedPolicy(train=(0, 9), val=(10, 19), holdout=(20, 29)),
)


@dataclass(frozen=True)
class Candidate:
    """A simulated candidate.

    Attributes:
        gain: True relative reduction of errors.
        discordance: Discordant shots as a multiple of the reference's errors.
    """

    gain: float
    discordance: float

    def draw(self, rng: np.random.Generator, shots: int, ler: float = LER) -> PairedCounts:
        """Draw paired counts at the reference's logical error rate `ler`."""
        fixed_p = ler * (self.discordance + self.gain) / 2
        broken_p = ler * (self.discordance - self.gain) / 2
        both_p = max(ler - fixed_p, 0.0)
        fixed, broken, both, _ = rng.multinomial(shots, [fixed_p, broken_p, both_p, 1 - fixed_p - broken_p - both_p])
        return PairedCounts(
            shots=shots,
            errors_reference=int(fixed + both),
            errors_candidate=int(broken + both),
            fixed=int(fixed),
            broken=int(broken),
        )


@dataclass(frozen=True)
class Outcome:
    """End of one verification."""

    verdict: Verdict
    stopped_by: StoppedBy
    shots: int


def verify_candidate(
    candidate: Candidate,
    rng: np.random.Generator,
    attempt: int,
    discoveries: int,
    budget: int,
    effect_shots: int,
    *,
    ler: float = LER,
    chunk: int = CHUNK,
) -> Outcome:
    """Run one candidate through the test and, given evidence, the effect draw."""
    monitor = Monitor(ENV.protocol.alpha, attempt, discoveries, budget, ENV.protocol.min_relative_gain)
    reason: StoppedBy | None = None
    while reason is None:
        reason = monitor.add(candidate.draw(rng, chunk, ler))
    test = monitor.result(reason)
    effect = paired_effect(candidate.draw(rng, effect_shots, ler)) if reason == "evidence" else None
    return Outcome(decide(ENV, test, effect, ())[0], reason, monitor.counts.shots)


def false_discoveries(streams: int, profile: str, rng: np.random.Generator) -> list[Row]:
    """Count streams of candidates without a gain that contain a false VERIFIED, or a false rejection."""
    budget, effect_shots = PROFILES[profile].judge_test_shots, PROFILES[profile].judge_effect_shots
    verified = rejected = 0
    for _ in range(streams):
        outcomes: list[Outcome] = []
        for attempt in range(1, STREAM + 1):
            discoveries = sum(outcome.verdict == "VERIFIED" for outcome in outcomes)
            null = Candidate(0.0, float(rng.uniform(1, 2)))
            outcomes.append(verify_candidate(null, rng, attempt, discoveries, budget, effect_shots))
        verified += any(outcome.verdict == "VERIFIED" for outcome in outcomes)
        rejected += any(outcome.stopped_by == "evidence" for outcome in outcomes)
    runs = f"{streams:,} streams of {STREAM} nulls, LER {LER:g}, discordance 1 to 2 x LER, {profile} budget"
    aim = "aim: Clopper-Pearson lower bound <= 5%"
    return [
        Row(f"streams with a false VERIFIED ({profile})", format_share(verified, streams), aim, runs),
        Row(
            f"streams with a false rejection in the test alone ({profile})", format_share(rejected, streams), aim, runs
        ),
    ]


def honest_gains(streams: int, rng: np.random.Generator) -> list[Row]:
    """Measure power for a true 10% gain at the prod budget, and shots relative to a fixed-size test."""
    budget, effect_shots = PROFILES["prod"].judge_test_shots, PROFILES["prod"].judge_effect_shots
    outcomes: list[list[Outcome]] = []
    ratios = []
    for _ in range(streams):
        stream: list[Outcome] = []
        for attempt in range(1, STREAM + 1):
            discoveries = sum(outcome.verdict == "VERIFIED" for outcome in stream)
            candidate = Candidate(0.10, float(rng.uniform(1, 2)))
            outcome = verify_candidate(candidate, rng, attempt, discoveries, budget, effect_shots)
            level = e_lond_level(ENV.protocol.alpha, attempt, discoveries)
            ratios.append(outcome.shots / fixed_size(0.05, candidate.discordance, level))
            stream.append(outcome)
        outcomes.append(stream)
    flat = [outcome for stream in outcomes for outcome in stream]
    found = sum(outcome.verdict == "VERIFIED" for outcome in flat)
    runs = f"{len(flat)} candidates, {streams} streams of {STREAM}, LER {LER:g}, discordance 1 to 2 x LER"
    rows = [Row("true 10% gains VERIFIED (prod)", format_share(found, len(flat)), "aim: >= 90%", runs)]
    for first in range(0, STREAM, 5):
        part = [outcome for stream in outcomes for outcome in stream[first : first + 5]]
        hits = sum(outcome.verdict == "VERIFIED" for outcome in part)
        name = f"true 10% gains VERIFIED, positions {first + 1} to {first + 5}"
        median = int(np.median([outcome.shots for outcome in part]))
        rows.append(Row(name, format_share(hits, len(part)), f"median {median:,} shots of {budget:,}", runs))
    against = "fixed-size test for a 5% gain, same level, power 90%; aim: <= 0.5"
    rows.append(Row("shots used, median ratio", f"{np.median(ratios):.2f}", against, runs))
    last = count_verified_last(streams * 4, rng, budget, effect_shots)
    name = f"true 10% gains VERIFIED at position {STREAM} with no discovery before"
    return [*rows, Row(name, format_share(last, streams * 4), "aim: >= 90%", f"{streams * 4} candidates, as above")]


def count_verified_last(n: int, rng: np.random.Generator, budget: int, effect_shots: int) -> int:
    """Count VERIFIED at the last position of a stream without discoveries, where the level is lowest."""
    return sum(
        verify_candidate(Candidate(0.10, float(rng.uniform(1, 2))), rng, STREAM, 0, budget, effect_shots).verdict
        == "VERIFIED"
        for _ in range(n)
    )


def fixed_size(gain: float, discordance: float, level: float, power: float = 0.9) -> float:
    """Return the shots that a one-sided paired z-test at `level` needs to find `gain` with `power`."""
    z = float(distributions.norm.isf(level) + distributions.norm.ppf(power))
    return z * z * discordance / (LER * gain * gain)


def winners_curse(searches: int, rng: np.random.Generator) -> list[Row]:
    """Measure the bias of the published gain of the best of 50 candidates, selected by 20,000 validation shots."""
    val_bias, published_bias = [], []
    shots = PROFILES["dev"].judge_effect_shots
    for _ in range(searches):
        pool = [Candidate(float(gain), 1.5) for gain in rng.normal(0.05, 0.05, 50)]
        seen = [paired_effect(candidate.draw(rng, PROFILES["dev"].val_shots)).relative or 0.0 for candidate in pool]
        best = int(np.argmax(seen))
        published = paired_effect(pool[best].draw(rng, shots)).relative or 0.0
        val_bias.append(seen[best] - pool[best].gain)
        published_bias.append(published - pool[best].gain)
    runs = f"{searches} searches over 50 candidates, {shots:,} shots of effect draw"
    return [
        Row(
            "bias of the published gain, winners",
            in_standard_errors(published_bias),
            "aim: within 3 standard errors of 0",
            runs,
        ),
        Row(
            "bias of the same winners' val figure",
            in_standard_errors(val_bias),
            "for comparison: the winner's curse",
            runs,
        ),
    ]


def gains_below_the_minimum(runs: int, rng: np.random.Generator) -> list[Row]:
    """Count runs in which a candidate with a gain just below the env's minimum is VERIFIED (100 attempts each)."""
    profile, rows = PROFILES["prod"], []
    for gain in (0.019, 0.017):
        hits = 0
        for _ in range(runs):
            hits += any(
                verify_candidate(
                    Candidate(gain, 0.5), rng, attempt, 0, profile.judge_test_shots, profile.judge_effect_shots,
                    ler=5e-2, chunk=10 * CHUNK,
                ).verdict == "VERIFIED"
                for attempt in range(1, 101)
            )  # fmt: skip
        name = f"runs with a VERIFIED candidate whose true gain is {100 * gain:g}% (minimum 2%)"
        what = f"{runs} runs of 100 attempts, LER 5%, discordance 0.5, prod budget, checked every {10 * CHUNK:,} shots"
        rows.append(Row(name, format_share(hits, runs), "aim: <= 5%", what))
    return rows


def best_of_many(searches: int, rng: np.random.Generator) -> list[Row]:
    """Measure how often the interval of the best of 100 equal candidates covers their true gain of 10%."""
    shots, single, together, gains = PROFILES["dev"].judge_effect_shots, 0, 0, []
    for _ in range(searches):
        effects = [paired_effect(Candidate(0.10, 1.5).draw(rng, shots)) for _ in range(100)]
        best = max(range(100), key=lambda index: effects[index].relative or 0.0)
        wide = simultaneous_effect(effects[best], best + 1)
        gains.append(effects[best].relative or 0.0)
        single += _covers(effects[best], 0.10)
        together += wide is not None and _covers(wide, 0.10)
    what = f"{searches} runs of 100 candidates with a true gain of 10%, {shots:,} shots each, LER {LER:g}"
    return [
        Row("gain of the best of 100, on average", f"{100 * float(np.mean(gains)):.1f}%", "true gain: 10%", what),
        Row("its 95% interval covers the true gain", format_share(single, searches), "not corrected", what),
        Row("its simultaneous interval covers it", format_share(together, searches), "aim: >= 95%", what),
    ]


def _covers(effect: PairedEffect, gain: float) -> bool:
    return effect.relative_low is not None and effect.relative_low <= gain <= (effect.relative_high or 0.0)


class OutcomeCounter:
    """Counts outcomes of a pytest run, one per test, with the verdicts that tests recorded (`record_property`)."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.end_states: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome
            self.end_states[report.nodeid] = [str(value) for name, value in report.user_properties if name == "ended"]

    def count(self, outcome: str, part: str = "") -> int:
        return sum(value == outcome and part in name for name, value in self.outcomes.items())

    def describe(self, part: str = "") -> str:
        return ", ".join(f"{self.count(outcome, part)} {outcome}" for outcome in ("passed", "failed", "skipped"))

    @property
    def backends(self) -> Row:
        """Return in which sandbox backends the tests ran: a figure of one backend says nothing about the other."""
        complete = [name for name in BACKENDS if self.count("passed", name) and not self.count("skipped", name)]
        runs = "; ".join(f"{name}: {self.describe(name)}" for name in BACKENDS)
        return Row("sandbox backends in which every test ran", ", ".join(complete) or "none", "aim: both", runs)


def run_tests(tests: list[str]) -> OutcomeCounter:
    counter = OutcomeCounter()
    options = ["-q", "-m", "long or not long", "-p", "no:cacheprovider", "-p", "no:xdist"]
    code = pytest.main([*options, *(str(ROOT / test) for test in tests)], plugins=[counter])
    if int(code) > 1 or not counter.outcomes:  # 0: all passed, 1: some failed; otherwise it was interrupted
        raise SystemExit(f"the tests did not finish (pytest exit {int(code)})")
    return counter


def cheats() -> list[Row]:
    """Run the cheating checkpoints through the verifier and record each verdict with its reason."""
    counter = run_tests(["tests/cheaters"])
    rows = [
        Row(
            "cheats VERIFIED, or not named by the expected guard",
            str(counter.count("failed")),
            "aim: 0",
            counter.describe(),
        ),
        counter.backends,
    ]
    for name, ends in counter.end_states.items():
        if ends:
            test = name.split("::")[-1].removeprefix("test_")
            rows.append(Row(test, "; then ".join(ends), "aim: not VERIFIED, and why", "shots of the smoke profile"))
    return rows


def hostile() -> list[Row]:
    """Run every case of docs/contracts/untrusted-input.md, in each sandbox backend that is available."""
    page = (ROOT / "docs/contracts/untrusted-input.md").read_text(encoding="utf-8")
    cases = [
        line for line in page.split("## Cheating checkpoints")[0].splitlines() if "tests/" in line or "sandbox:" in line
    ]
    tests = {name for line in cases for name in re.findall(r"`(tests/[\w/]+\.py::\w+)`", line)}
    # Every attack, and the table of system calls: each call in each backend.
    tests |= {f"tests/unit/system/sandbox/test_{name}.py" for name in ("sandbox", "syscalls")}
    counter = run_tests(sorted(name for name in tests if not name.startswith("tests/cheaters")))
    runs = f"{len(cases)} cases in {len(counter.outcomes)} tests: {counter.describe()}"
    return [Row("hostile cases that succeeded", str(counter.count("failed")), "aim: 0", runs), counter.backends]


def in_standard_errors(values: list[float]) -> str:
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))
    return f"{100 * mean:+.2f} points, {mean / error:+.1f} standard errors"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the verification and record the results.")
    parser.add_argument("--streams", type=int, default=2_000, help="streams of nulls at the dev budget")
    parser.add_argument("--prod-streams", type=int, default=200, help="streams of nulls at the prod budget")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", choices=("all", *PARTS), default="all")
    parser.add_argument("--resume", action="store_true", help="skip parts that were recorded today")
    options = parser.parse_args()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    done = {row["suite"] for row in load() if row["date"] == today} if options.resume else set()
    for part in PARTS if options.part == "all" else (options.part,):
        suite = f"verification: {part}"
        if suite not in done:
            rows = PARTS[part](options, np.random.default_rng(options.seed))
            record(suite, rows)
            for row in rows:
                print(f"{row.name}: {row.figure} ({row.against}; {row.runs})", flush=True)


PARTS: dict[str, Callable[[argparse.Namespace, np.random.Generator], list[Row]]] = {
    "honest gains": lambda options, rng: honest_gains(10, rng),
    "winners": lambda options, rng: winners_curse(100, rng),
    "gains below the minimum": lambda options, rng: gains_below_the_minimum(60, rng),
    "best of many": lambda options, rng: best_of_many(200, rng),
    "nulls, dev": lambda options, rng: false_discoveries(options.streams, "dev", rng),
    "nulls, prod": lambda options, rng: false_discoveries(options.prod_streams, "prod", rng),
    "recorded shots with drift": lambda options, rng: drifting_streams(options.streams, rng),
    "cheats": lambda options, rng: cheats(),
    "hostile code": lambda options, rng: hostile(),
}


if __name__ == "__main__":
    main()
