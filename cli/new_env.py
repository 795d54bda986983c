"""An env that `autoqec add-env` creates: its checks and its file, and what kinds of code of extensions add to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from autoqec.cli.common import Output
from autoqec.cli.env_defaults import SEED_BANDS, default_baselines
from autoqec.cli.env_noise import split_list
from autoqec.errors import UsageError
from autoqec.reporting.text import pluralize

HELP = "autoqec add-env --help"
MIN_BASELINE_ERRORS = 30  # with fewer logical errors of the baseline a gain is hard to detect
SLOW_SHOTS, SHOTS = 300, 20_000  # default shots of the check: without and with a matching graph


@dataclass(frozen=True)
class NewEnv:
    """An env file that is to be written.

    Attributes:
        name: Name of the env.
        path: The env file.
        options: Values of all options of `add-env` by name; None for those that were not given.
        out: Prints.
    """

    name: str
    path: Path
    options: dict[str, Any]
    out: Output

    def reject(self, names: tuple[str, ...], message: str, more: str = "") -> None:
        """Raise UsageError if one of these options was given; `more` follows the hint to remove them."""
        unused = [f"--{name.replace('_', '-')}" for name in names if self.options[name] not in (None, False)]
        if unused:
            raise UsageError(message, location=unused[0], hint=f"remove {', '.join(unused)}{more}")

    def write(self, code: dict[str, Any], noise: dict[str, Any], baselines: tuple[str, ...] = ()) -> None:
        """Choose the inner decoder, sample and decode shots, write the env file, and print what was found.

        Args:
            code: The field `code` of the env.
            noise: The field `noise`.
            baselines: Added to the default baselines.

        Raises:
            UsageError: The env is invalid, or cannot be decoded.
        """
        from autoqec.qec.env_summary import suggest_backend, summarize_env
        from autoqec.store import atomic
        from autoqec.store.files import dump_config, env_from_data, load_env

        out, location, directory = self.out, f"env {self.name}", self.path.parent
        spec: dict[str, Any] = {"name": self.name, "code": code, "noise": noise, "seed_policy": SEED_BANDS}
        backend = self.options["backend"]
        if backend is None:
            backend = suggest_backend(env_from_data(spec, location=location, directory=directory, hint=HELP))
            reason = "the code has a matching graph" if backend == "mwpm" else "no matching graph"
            out.note(f"backend {backend}: {reason}")
        chosen = split_list(self.options["baselines"]) or [*default_baselines(backend), *baselines]
        spec |= {"backend": backend, "baselines": chosen}
        env = env_from_data(spec, location=location, directory=directory, hint=HELP)
        summary = summarize_env(env, self.options["shots"] or (SHOTS if backend == "mwpm" else SLOW_SHOTS))
        atomic.write_text(self.path, dump_config(spec))
        assert load_env(self.path)[0] == env  # the file holds what was checked
        sizes = {"detector": summary.n_detectors, "observable": summary.n_observables}
        sizes["mechanism"] = summary.n_mechanisms
        out.say(f"{self.path}: {', '.join(pluralize(number, noun) for noun, number in sizes.items())}")
        out.say(f"predecoder: inputs {summary.inputs}, {summary.n_variables} log-odds per shot")
        if summary.distance_bound is not None:
            out.say(f"distance: at most {summary.distance_bound} (length of the shortest graphlike logical error)")
        width = max(map(len, summary.rates))
        for decoder, rate in summary.rates.items():
            ler = f"LER {rate.low:.2e} to {rate.high:.2e} (95%)"
            out.say(f"{decoder:{width}}  {rate.errors} errors in {rate.shots} shots: {ler}")
        if summary.rates[env.plain].errors < MIN_BASELINE_ERRORS:
            out.note(
                f"fewer than {MIN_BASELINE_ERRORS} logical errors of {env.plain}: a gain would be hard to detect; "
                "raise p, or use more --shots"
            )
        out.say(f"Next: autoqec run {self.path} --profile smoke --rounds 1")
        rates = {decoder: rate.dump() for decoder, rate in summary.rates.items()}
        figures = {key: value for key, value in vars(summary).items() if key != "rates"}
        out.emit({"path": str(self.path), "env": env.dump(), **figures, "rates": rates})


@dataclass(frozen=True)
class EnvOptions:
    """What a kind of code of an extension adds to `autoqec add-env`.

    Attributes:
        options: Its options. With the first one the user chooses this kind; the others need it.
        create: Writes the env.
    """

    options: tuple[click.Option, ...]
    create: Callable[[NewEnv], None]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the options as Python identifiers."""
        return tuple(str(option.name) for option in self.options)


def extension_options() -> list[EnvOptions]:
    """Return what the kinds of code that are installed add."""
    from autoqec.contracts.code_source import extension_codes

    return [found for code in extension_codes() if (found := code.env_options()) is not None]
