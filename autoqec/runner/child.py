"""The child process of a round, `python -m autoqec.runner.child SPEC`: builds, trains and measures one predecoder.

It runs a branch's modules and is therefore untrusted: it reads its spec, writes only into the spec's out_dir, and
leaves its result in result.json. Its standard output is only a log.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import torch

from autoqec.contracts.dsl import GateShare, PredecoderDSL, parse_dsl
from autoqec.contracts.round import FailureCause, MemberCounts, PairedCounts
from autoqec.decoders import checkpoint, flops, overlay
from autoqec.decoders.base import Predecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.decoders.family import target_member
from autoqec.decoders.gating import Gate, calibrate_gate
from autoqec.decoders.latency import predict_time_ratio
from autoqec.errors import AutoqecError, ContractError, RoundError
from autoqec.qec.problem import Problem
from autoqec.runner import devices
from autoqec.runner.evaluate import val_counts
from autoqec.runner.family import build_agent, member_problems
from autoqec.runner.logger import TrainLogger
from autoqec.runner.spec import EVENTS, RESULT, ChildResult, ChildSpec, ChildStatus, one_line, out_layout
from autoqec.runner.training import Phase, TrainingBudget, phases, train, training_flops
from autoqec.store import atomic, files

TIME_MARGIN = 1.5  # by which times on a loaded machine vary; the verifier has none
OUT_OF_MEMORY_MESSAGES = ("can't allocate memory", "out of memory", "cannot allocate memory", "std::bad_alloc")


class RoundTask:
    """The steps of one round. `results` keeps what is known when a step fails."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.layout = out_layout(Path(spec.out_dir))
        self.results: dict[str, Any] = {}
        self.building = True

    def run(self) -> None:
        """Build, train and evaluate."""
        spec = self.spec
        torch.set_num_threads(spec.threads)
        overlay.use_modules_dir(spec.modules_dir)
        env = files.parse_env(spec.env_yaml, location="env")
        self.dsl: PredecoderDSL = parse_dsl(spec.predecoder_config)
        self.results |= devices.trained_on(self.dsl.training)
        self.problem = Problem.from_env(env)
        self.build()
        self.building = False
        self.run_training()
        self.evaluate()

    def build(self) -> None:
        """Compile the predecoder, check the env's limits and plan the training.

        Raises:
            RoundError: The network exceeds a limit of the env.
            ContractError: The parent's weights do not fit.
        """
        spec, problem = self.spec, self.problem
        self.model: Predecoder = compile_predecoder(self.dsl, problem, seed=spec.seed)
        if isinstance(self.dsl.gate, GateShare):
            self.model.gate = calibrate_gate(problem, self.dsl.gate.share)
        elif self.dsl.gate is not None:
            Gate(problem, self.dsl.gate)  # fails now, not after training, if the problem has no complementary gap
        cost = flops.count(self.model, problem.n_detectors)
        self.results |= {"n_params": cost.n_params, "flops_per_syndrome": cost.flops_per_syndrome}
        limits = problem.env.constraints
        for name, value, limit in (
            ("n_params", cost.n_params, limits.max_params),
            ("flops_per_syndrome", cost.flops_per_syndrome, limits.max_flops_per_syndrome),
        ):
            if value > limit:
                message = f"{name} = {value} exceeds the env's limit of {limit}"
                raise RoundError("compile_error", message, cause="cost limit")
        self.check_time_ratio()
        if self.dsl.training.init == "parent":
            load_parent_weights(self.model, problem, spec.parent_checkpoint)
        self.agent = build_agent(self.model, self.dsl, problem)
        self.problems = member_problems(problem)
        self.agents = (self.agent, *self.agent.members)
        flops_per_shot = [
            training_flops(agent.model, each.n_detectors)
            for agent, each in zip(self.agents, self.problems, strict=True)
        ]
        budget = TrainingBudget.of(spec.profile, self.dsl, sum(flops_per_shot) // len(flops_per_shot))
        self.recorded = None if spec.recorded_dir is None else Path(spec.recorded_dir)
        self.plan: list[Phase] = phases(problem, self.dsl, spec.profile, budget, spec.seed, self.recorded)

    def check_time_ratio(self) -> None:
        """Refuse a network that is far slower than the env allows; the verifier measures the trained one exactly.

        Raises:
            RoundError: The predicted time ratio exceeds the env's limit by more than times vary.
        """
        limit = self.problem.env.constraints.max_time_ratio
        if limit is None:
            return
        ratio = predict_time_ratio(self.model, self.problem)
        if ratio > TIME_MARGIN * limit:
            message = (
                f"before training, decoding takes about {ratio:.3g} x the CPU time of correlated matching: "
                f"{ratio / limit:.3g} times the env's limit max_time_ratio = {limit:g}, at most {TIME_MARGIN:g} times"
            )
            raise RoundError("compile_error", message, cause="too slow")

    def run_training(self) -> None:
        """Train and save the checkpoint."""
        training = self.dsl.training
        logger = TrainLogger(
            self.layout,
            snapshot_mode=training.snapshot_mode,
            snapshot_gap=training.snapshot_gap,
            on_progress=self.report_progress,
        )
        start_time = time.perf_counter()
        try:
            shots = train(self.agent, self.plan, self.dsl, logger, self.spec.seed)
        finally:
            self.results |= {"train_steps": len(logger.losses), "train_wallclock_s": time.perf_counter() - start_time}
        self.results |= {"train_shots": shots, "final_loss": logger.losses[-1]}
        checkpoint.save(self.layout.checkpoint, self.model, self.dsl, self.spec.predecoder_config)

    def evaluate(self) -> None:
        """Count logical errors on the val shots; of a family, of every circuit."""
        start_time = time.perf_counter()

        def report_progress(counts: PairedCounts, total: int) -> None:
            self.report_progress({"phase": "evaluating", **counts.dump(), "budget": total})

        shots = self.spec.profile.val_shots
        counts = [
            val_counts(problem, agent, shots, report_progress, self.recorded)
            for problem, agent in zip(self.problems, self.agents, strict=True)
        ]
        self.results["val"] = counts[0]
        if len(counts) > 1:
            self.results["val_members"] = tuple(
                MemberCounts(**vars(target_member(problem.env)), counts=found)
                for problem, found in zip(self.problems, counts, strict=True)
            )
        self.results["eval_wallclock_s"] = time.perf_counter() - start_time

    def report_progress(self, event: dict[str, Any]) -> None:
        """Append a progress event for the parent."""
        with (self.layout.dir / EVENTS).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(event) + "\n")


def load_parent_weights(model: Predecoder, problem: Problem, parent: str | None) -> None:
    """Load the fork parent's weights.

    Raises:
        ContractError: There is no parent checkpoint, or it does not fit; the message names both sides.
    """
    if parent is None:
        raise ContractError(
            "`training.init: parent` needs a fork parent with a checkpoint",
            location="training.init",
            hint="set `training.init: fresh`, or fork from a round",
        )
    payload = checkpoint.read(Path(parent))
    checkpoint.require_circuit(payload, problem.source, parent)
    checkpoint.restore(model, payload["state_dict"], location=parent)


class Failure(NamedTuple):
    """What result.json says of a failure."""

    status: ChildStatus
    reason: str
    cause: FailureCause


def classify_failure(error: BaseException, building: bool, modules_dir: str | None) -> Failure:
    """Return the status, reason and cause of a failure, with its location in the editable modules if it is there."""
    status: ChildStatus = "compile_error" if building else "train_error"
    cause: FailureCause = "does not fit" if building else "crash"
    if isinstance(error, RoundError):
        return Failure(error.status, str(error), error.cause or cause)  # type: ignore[arg-type]
    if isinstance(error, AutoqecError):
        return Failure(status, str(error), cause)
    text = f"{type(error).__name__}: {error}"
    # torch and the C++ runtime have no exception type of their own for it
    if isinstance(error, MemoryError) or any(message in text for message in OUT_OF_MEMORY_MESSAGES):
        return Failure("killed_by_safety", f"out of memory: {text}", "out of memory")
    modules_root = str(modules_dir or Path(overlay.__file__).parent / "modules")
    inside = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(modules_root)]
    if inside:
        place = f"modules/{Path(inside[-1].filename).name}:{inside[-1].lineno}"
        return Failure(status, f"{place}: {text}", "module code")
    return Failure(status, text, cause)


def main(argv: list[str]) -> int:
    """Run the spec in argv[0], write result.json and exit the process."""
    spec = ChildSpec.read(json.loads(Path(argv[0]).read_text(encoding="utf-8")), location=argv[0])
    task = RoundTask(spec)
    failure: Failure | None = None
    try:
        task.run()
    except BaseException as error:  # branch code may raise anything; each failure has a status
        traceback.print_exc()
        failure = classify_failure(error, task.building, spec.modules_dir)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    task.results["rss_peak_gb"] = round(usage.ru_maxrss / 2**20, 4)
    if torch.cuda.is_available():
        task.results["vram_peak_gb"] = round(torch.cuda.max_memory_allocated() / 2**30, 4)
    if failure is None:
        result = ChildResult(status="ok", **task.results)
    else:
        result = ChildResult(
            status=failure.status, reason=one_line(failure.reason), cause=failure.cause, **task.results
        )
    atomic.write_json(task.layout.dir / RESULT, result.dump())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # skips exit handlers and threads of branch code


if __name__ == "__main__":
    main(sys.argv[1:])
