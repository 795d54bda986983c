"""Families of circuits that share one set of weights: building the networks, and evaluating a checkpoint on them.

All comparisons of one call share one error budget: their intervals hold simultaneously (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from autoqec.contracts.base import first_validation_error
from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.env import CORRELATED, SEED_SPACE, EnvSpec, StimGeneratorCode
from autoqec.contracts.verdict import PairedEffect
from autoqec.decoders import checkpoint
from autoqec.decoders.base import Predecoder
from autoqec.decoders.decode_memory import decoding_size, require_decode_memory
from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.errors import ContractError, UsageError
from autoqec.qec.backends import make_backend
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import band_seed, sample
from autoqec.qec.stats import NO_PAIRS, add_pairs, count_pairs, error_mask, paired_effect

CHUNK = 5_000  # shots per seed
SEEDS = (SEED_SPACE, 2**63 - 1)  # above the bands of training and validation

Outcome = Literal["fewer", "more", "not shown"]


@dataclass(frozen=True, order=True)
class Member:
    """One circuit of a family.

    Attributes:
        distance: Code distance.
        rounds: Rounds of syndrome measurement.
        p: Physical error rate.
    """

    distance: int
    rounds: int
    p: float

    def __str__(self) -> str:
        return f"d={self.distance} r={self.rounds} p={self.p:g}"


@dataclass(frozen=True)
class MemberEffect:
    """Failures of a checkpoint on fresh shots of one member, beside those of each reference on the same shots.

    Attributes:
        member: The circuit.
        trained: Whether the checkpoint's env describes the circuit, at its target p.
        effects: One per reference, with intervals that hold for all members and references together.
    """

    member: Member
    trained: bool
    effects: tuple[PairedEffect, ...]


def target_member(env: EnvSpec) -> Member:
    """Return the circuit of an env at its target p.

    Raises:
        UsageError: The code source has no distance.
    """
    if not isinstance(env.code, StimGeneratorCode) or env.target is None:
        raise UsageError(
            f"code kind `{env.code.kind}` has no distance, so it has no family of circuits",
            location=f"env {env.name}",
            hint="use `autoqec decode --dem FILE` for shots of another circuit",
        )
    return Member(env.code.distance, env.code.rounds, env.target)


def trained_members(env: EnvSpec) -> list[Member]:
    """Return the circuits that the checkpoint of an env is trained on, its target first."""
    return [target_member(each) for each in (env, *env.other_members)]


def member_env(env: EnvSpec, member: Member) -> EnvSpec:
    """Return the env with the distance, rounds and error rate of a member.

    Raises:
        UsageError: A value is out of range.
    """
    fields = env.dump()
    fields["code"] |= {"distance": member.distance, "rounds": member.rounds, "members": ()}
    fields["noise"] |= {"p": [member.p], "target_p": member.p}
    try:
        return EnvSpec.model_validate(fields, extra="allow")
    except ValidationError as error:
        raise UsageError(first_validation_error(error), location=str(member), hint="choose another value") from error


def compile_members(
    dsl: PredecoderDSL, model: Predecoder, env: EnvSpec, problems: Sequence[Problem]
) -> list[Predecoder]:
    """Build the networks of a family's other circuits; they use the parameters of the target's network.

    Args:
        dsl: The config of `model`.
        model: The network of the env's target.
        env: The env.
        problems: The other circuits.

    Raises:
        ContractError: The config's weights belong to one circuit, its loop mixes no circuits, or a circuit has edges of
            a class that the target's circuit lacks.
    """
    location = f"env {env.name}"
    if problems and not dsl.translation_invariant:
        message = f"the env has {len(problems) + 1} circuits, and weights of type `{dsl.type}` belong to one circuit"
        raise ContractError(message, location=location, hint="choose type `local`, whose weights all circuits share")
    if problems and dsl.training.replay is not None:
        message = "shots of different circuits cannot share a replay buffer"
        raise ContractError(message, location="training.loop", hint="choose a loop of `minibatch` or `sync`")
    models = [compile_predecoder(dsl, problem, seed=0) for problem in problems]
    parameters = dict(model.named_parameters())
    for problem, other in zip(problems, models, strict=True):
        for name, own in list(other.named_parameters()):
            if name not in parameters or parameters[name].shape != own.shape:
                size = target_member(problem.env)
                raise ContractError(
                    f"`{name}` of the circuit {size} has no counterpart in the target's circuit",
                    location=location,
                    hint="make the circuit with all kinds of edges the target: 3 or more rounds, an odd distance",
                )
            *path, last = name.split(".")
            setattr(other.get_submodule(".".join(path)), last, parameters[name])
        other.gate = model.gate
    return models


def require_shared_weights(env: EnvSpec, inputs: str) -> None:
    """Check that all circuits of a family can share the weights of a network.

    Args:
        env: The env; nothing is checked for a single circuit.
        inputs: Which detectors a network of this env reads.

    Raises:
        UsageError: They cannot.
    """
    problems = [Problem.from_env(each) for each in env.other_members]
    if not problems:
        return
    dsl = PredecoderDSL.model_validate({"type": "local", "local": {"inputs": inputs, "hidden": 2}})
    try:
        compile_members(dsl, compile_predecoder(dsl, Problem.from_env(env), seed=0), env, problems)
    except ContractError as error:
        raise UsageError(error.message, location=error.location, hint=error.hint) from error
    except ValueError as error:  # of the module: detectors without coordinates
        raise UsageError(str(error), location=f"env {env.name}", hint="give an env of one circuit") from error


def check_members(env: EnvSpec, path: Path, members: Sequence[Member]) -> None:
    """Check that the weights of a checkpoint fit every member.

    Raises:
        UsageError: A member is repeated or invalid, the weights belong to the env's circuit alone, or the machine has
            less memory than a member needs.
    """
    target = target_member(env)
    dsl = parse_dsl(checkpoint.read(path)["dsl_config"], location=f"{path}, key dsl_config")
    for index, member in enumerate(members):
        if member in members[:index]:
            raise UsageError("is given twice", location=str(member), hint="remove one of them")
        of_member = member_env(env, member)
        same_circuit = (member.distance, member.rounds) == (target.distance, target.rounds)
        if not same_circuit and not dsl.translation_invariant:
            raise UsageError(
                f"weights of type `{dsl.type}` belong to the circuit d={target.distance} r={target.rounds}",
                location=str(member),
                hint="choose a checkpoint of type `local`, whose weights all circuits of the family share",
            )
        require_decode_memory(decoding_size(of_member, None), 1)


def evaluate_members(
    env: EnvSpec, path: Path, members: Sequence[Member], *, shots: int, seed: int
) -> Iterator[MemberEffect]:
    """Decode fresh shots of each member with a checkpoint and with the references.

    References are the inner decoder alone and, where it is matching, correlated matching.

    Args:
        env: The env that the checkpoint was trained on.
        path: The checkpoint.
        members: Circuits, as accepted by `check_members`.
        shots: Shots per member.
        seed: Selects the shots; members have different shots.

    Yields:
        One result per member, in order.
    """
    references = [env.plain, *([CORRELATED] if env.backend == "mwpm" else [])]
    confidence = simultaneous_confidence(env.protocol.alpha, len(members) * len(references))
    for member in members:
        problem = Problem.from_env(member_env(env, member))
        candidate = CheckpointDecoder.of(env, path, problem.dem)
        decoders = {name: make_backend(name, problem) for name in references}
        counts = dict.fromkeys(references, NO_PAIRS)
        for start in range(0, shots, CHUNK):
            drawn = sample(problem, min(CHUNK, shots - start), band_seed(SEEDS, "family", seed, str(member), start))
            wrong = error_mask(candidate.decode(drawn.detection_events), drawn.observables)
            for name, decoder in decoders.items():
                reference_wrong = error_mask(decoder.decode(drawn.detection_events), drawn.observables)
                counts[name] = add_pairs(counts[name], count_pairs(reference_wrong, wrong))
        effects = tuple(
            paired_effect(counts[name], reference=name, p=member.p, confidence=confidence) for name in references
        )
        yield MemberEffect(member, member in trained_members(env), effects)


def simultaneous_confidence(alpha: float, n_intervals: int) -> float:
    """Return the confidence of each interval at which all of them hold with probability 1 - alpha (Bonferroni)."""
    return 1 - alpha / n_intervals


def outcome(effect: PairedEffect) -> Outcome:
    """Return whether the interval of the difference shows fewer failures than the reference, or more."""
    if effect.delta_low > 0:
        return "fewer"
    return "more" if effect.delta_high < 0 else "not shown"
