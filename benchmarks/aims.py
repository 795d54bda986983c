"""Measure networks against the best classical decoder: `make bench ARGS=--aims`, about an hour on one core.

Each network is trained by the Runner in its sandbox, as in a round (`runner.run_round`), and then decodes fresh shots
of the circuit next to the baselines. A round that exists in the directory is measured again without training.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import util
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import numpy as np

from autoqec.contracts.events import Event, TrainingProgress
from autoqec.contracts.profiles import PROFILES
from autoqec.contracts.round import RunnerConfig
from autoqec.contracts.verdict import PairedEffect
from autoqec.decoders import checkpoint
from autoqec.qec import backends, decoder_trust, sampling
from autoqec.qec.problem import Problem
from autoqec.qec.stats import NO_PAIRS, add_pairs, count_pairs, error_mask, paired_effect
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.runner import run_round
from autoqec.store import atomic, files
from autoqec.store.layout import RoundLayout
from benchmarks.table import Row, record

SUITE = "networks: aims"
CHUNK = 10_000
DECODER_TITLES = {
    "mwpm": "plain matching",
    "mwpm_correlated": "correlated matching",
    "bposd": "the env's BP+OSD-0",
    "bposd_cs10": "tuned BP+OSD-CS10",
}


@dataclass(frozen=True)
class BenchmarkTarget:
    """One network. train, finetune: shots of the two phases. points: (p, fresh shots, the aim as text).

    reference: the best classical decoder, with the env's settings updated by `reference_overrides`; the network's inner
    decoder uses the same settings, so that they differ only by the network. likeliest: fresh shots at the env's p for
    Tesseract, which finds the most likely error.
    """

    name: str
    title: str
    env: str
    config: dict[str, Any]
    train: int
    finetune: int
    points: tuple[tuple[float, int, str], ...]
    training: dict[str, Any] = field(default_factory=dict)
    reference: str = "mwpm_correlated"
    reference_overrides: dict[str, Any] = field(default_factory=dict)
    seed: int = 1
    likeliest: int = 0


def mlp(hidden: int, **more: Any) -> dict[str, Any]:
    return {"mlp": {"inputs": "other_sector", "hidden": hidden, "depth": 2, "activation": "relu", "skip": True} | more}


BENCHMARK_TARGETS = (
    BenchmarkTarget(
        "d5",
        "surface d=5 z",
        "surface_d5_depol",
        mlp(256),
        train=1_750_000,
        finetune=900_000,
        points=(
            (0.005, 500_000, ">= 15% fewer, <= 200k parameters, <= 5 CPU-minutes of training"),
            (0.003, 500_000, "interval above 0, unretrained"),
            (0.010, 100_000, "interval above 0, unretrained"),
        ),
        likeliest=60_000,
    ),
    BenchmarkTarget(
        "d5x",
        "surface d=5 x",
        "surface_d5_x_depol",
        mlp(256),
        train=1_750_000,
        finetune=900_000,
        points=((0.005, 500_000, "as z, within intervals"),),
    ),
    BenchmarkTarget(
        "tiny",
        "surface d=5 z, tiny",
        "surface_d5_depol",
        mlp(48, skip=False),
        train=1_750_000,
        finetune=300_000,
        points=((0.005, 500_000, "interval above 0, <= 20k parameters"),),
    ),
    BenchmarkTarget(
        "d7",
        "surface d=7 z",
        "surface_d7_depol",
        mlp(256),
        train=4_000_000,
        finetune=600_000,
        points=((0.005, 200_000, "interval above 0"), (0.003, 1_000_000, "interval above 0, unretrained")),
    ),
    BenchmarkTarget(
        "bb72",
        "bb72 circuit-level z",
        "bb72_circuit",
        mlp(256),
        train=1_200_000,
        finetune=0,
        points=((0.003, 20_000, "interval above 0"), (0.002, 40_000, "interval above 0, unretrained")),
        reference="bposd_cs10",
        reference_overrides={"iterations": 1_000, "order": 10},
        seed=810_599_468,
    ),
)


def measure(aim: BenchmarkTarget, directory: Path) -> Iterator[Row]:
    env_text = resources("autoqec.envs.builtin").joinpath(f"{aim.env}.yaml").read_text(encoding="utf-8")
    env = files.parse_env(env_text, location=aim.env)
    layout = RoundLayout(directory / aim.name, 1)
    cost = train_or_load(aim, env_text, layout)
    problem = Problem.from_env(env)
    model, _ = checkpoint.load(layout.checkpoint, problem)
    agent = PredecoderAgent(model.eval(), cost["flops_per_syndrome"])
    for p, shots, target in aim.points:
        effects = compare(aim, problem, agent, p, shots)
        best, plain = effects[aim.reference], effects[env.plain]
        yield Row(
            f"{aim.title} p={p:g}: fewer failures than {DECODER_TITLES[aim.reference]}",
            percent(best),
            f"{aim.reference} on the same fresh shots (LER {best.counts.errors_reference / shots:.2e}); aim: {target}; "
            f"against {DECODER_TITLES[env.plain]} {percent(plain)}",
            f"{shots:,} shots, {best.counts.errors_reference:,} and {best.counts.errors_candidate:,} failures; "
            f"{cost['n_params']:,} parameters, {cost['train_shots']:,} training shots, "
            f"{cost['cpu_s']:.0f} CPU s for the whole round at p={problem.p:g}, seed {aim.seed}",
        )
    if aim.likeliest and installed("tesseract"):
        yield gap_recovered_row(aim, problem, agent)


def installed(decoder: str) -> bool:
    if util.find_spec(decoder_trust.KNOWN[decoder].module) is not None:
        return True
    print(f"{decoder} is not installed; hint: {decoder_trust.KNOWN[decoder].hint}")
    return False


def gap_recovered_row(aim: BenchmarkTarget, trained_on: Problem, agent: PredecoderAgent) -> Row:
    """Measure how much of the gap from the reference to most-likely-error decoding (Tesseract) the network closes."""
    problem, soft = trained_on, backends.make_soft_backend(trained_on, agent.output_mode)
    seed = sampling.band_seed(problem.env.seed_policy.holdout, "likeliest")
    fresh = sampling.sample(problem, aim.likeliest, seed)
    log_odds = agent.infer(sampling.unpack(fresh.detection_events, problem.n_detectors))
    failures = np.stack(
        [
            error_mask(backends.make_backend(aim.reference, problem).decode(fresh.detection_events), fresh.observables),
            error_mask(soft.decode_soft(fresh.detection_events, log_odds), fresh.observables),
            error_mask(backends.make_backend("tesseract", problem).decode(fresh.detection_events), fresh.observables),
        ]
    )
    reference, net, likeliest = failures.sum(axis=1)
    rng = np.random.default_rng(0)
    kinds, how_many = np.unique(failures, axis=1, return_counts=True)
    resampled = rng.multinomial(aim.likeliest, how_many / aim.likeliest, 10_000) @ kinds.T
    low, high = np.percentile((resampled[:, 0] - resampled[:, 1]) / (resampled[:, 0] - resampled[:, 2]), [2.5, 97.5])
    return Row(
        f"{aim.title} p={problem.p:g}: share of the gap to most-likely-error decoding that the network closes",
        f"{100 * (reference - net) / (reference - likeliest):.0f}% [{100 * low:.0f}, {100 * high:.0f}]",
        f"from {aim.reference} to Tesseract on the same fresh shots; aim: >= 70%, a stretch; interval by bootstrap",
        f"{aim.likeliest:,} shots; {reference:,}, {net:,} and {likeliest:,} failures",
    )


def train_or_load(aim: BenchmarkTarget, env_text: str, layout: RoundLayout) -> dict[str, Any]:
    """Return the cost of the network in `layout`, and train it if it does not exist."""
    cache_path = layout.dir / "bench.json"
    if cache_path.exists():
        found: dict[str, Any] = json.loads(cache_path.read_text())
        return found
    sizes = {
        "train_shots": aim.train,
        "finetune_shots": aim.finetune,
        "train_gflops": 10**6,
        "round_wallclock_s": 10**5,
    }
    PROFILES["dev"] = PROFILES["dev"].model_copy(update=sizes)
    config = {"type": next(iter(aim.config)), **aim.config, "training": aim.training}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    metrics = run_round(
        RunnerConfig(env_yaml=env_text, predecoder_config=config, seed=aim.seed, round_dir=str(layout.dir)),
        on_event=progress,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if metrics.status != "ok":
        raise SystemExit(f"{aim.name}: {metrics.status}: {metrics.status_reason}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    cost = {
        "n_params": metrics.n_params,
        "flops_per_syndrome": metrics.flops_per_syndrome,
        "train_shots": metrics.train_shots,
        "cpu_s": cpu_s,
    }
    atomic.write_json(cache_path, cost)
    return cost


def progress(event: Event) -> None:
    if isinstance(event, TrainingProgress) and event.eta_s is not None:
        print(
            f"  {event.phase}: {event.step} of {event.steps}, loss {event.loss:.4f}, {event.eta_s:.0f} s left",
            flush=True,
        )


def compare(
    aim: BenchmarkTarget, trained_on: Problem, agent: PredecoderAgent, p: float, shots: int
) -> dict[str, PairedEffect]:
    """Return paired effects against the baseline decoder and the reference on fresh shots at p.

    At another p than that of the training, the log-odds are shifted with the public priors, as in a verification.
    """
    env = trained_on.env
    problem = Problem.from_env(env, p)
    shift = (problem.graph.log_odds - trained_on.graph.log_odds).astype(np.float32)
    reference_overrides = Problem.from_env(
        env.model_copy(update={"bp": env.bp.model_copy(update=aim.reference_overrides)}), p
    )
    soft = backends.make_soft_backend(reference_overrides, agent.output_mode)
    baselines = {
        env.plain: backends.make_backend(env.plain, problem),
        aim.reference: backends.make_backend(aim.reference, reference_overrides),
    }
    counts = dict.fromkeys(baselines, NO_PAIRS)
    for start in range(0, shots, CHUNK):
        seed = sampling.band_seed(env.seed_policy.holdout, "aims", str(p), start)
        fresh = sampling.sample(problem, min(CHUNK, shots - start), seed)
        log_odds = agent.infer(sampling.unpack(fresh.detection_events, problem.n_detectors)) + shift
        failures = error_mask(soft.decode_soft(fresh.detection_events, log_odds), fresh.observables)
        for name, backend in baselines.items():
            errors = error_mask(backend.decode(fresh.detection_events), fresh.observables)
            counts[name] = add_pairs(counts[name], count_pairs(errors, failures))
    return {name: paired_effect(found, reference=name, p=p) for name, found in counts.items()}


def percent(effect: PairedEffect) -> str:
    if effect.relative is None or effect.relative_low is None or effect.relative_high is None:
        return "no failures"
    return f"{100 * effect.relative:.1f}% [{100 * effect.relative_low:.1f}, {100 * effect.relative_high:.1f}]"


def main(names: list[str], directory: Path) -> None:
    """Measure the named targets, or all; each row is recorded at once, so that an interruption keeps earlier rows."""
    known = {aim.name for aim in BENCHMARK_TARGETS}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"unknown aim {unknown[0]!r}; hint: choose from {', '.join(sorted(known))}")
    for aim in BENCHMARK_TARGETS:
        if names and aim.name not in names:
            continue
        print(aim.title)
        for row in measure(aim, directory):
            record(SUITE, [row], replace_suite=False)
            print(f"{row.name}: {row.figure} (against {row.against}; {row.runs})", flush=True)
