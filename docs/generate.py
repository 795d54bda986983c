"""Generates the JSON Schemas, the field tables of the contract pages, the decoder board, and the files for assistants.

`python -m docs.generate` writes them; a test compares the files with the models. The page of the decoder board is built
with the site and not committed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from autoqec.cli import assistant_files
from autoqec.cli.assistant_files import CHECKOUT_COMMAND
from autoqec.contracts import (
    dsl,
    env,
    history,
    job,
    messages,
    noise,
    pareto,
    profiles,
    provenance,
    round,
    verdict,
    verification_job,
)
from autoqec.contracts.base import Contract
from autoqec.extensions.board import contracts as board
from autoqec.extensions.board.circuits import load_circuits
from autoqec.extensions.board.export import page as page_of_board
from autoqec.extensions.board.results import board_measurements, table_of_cells
from autoqec.extensions.continual.runtime import config as runtime
from autoqec.extensions.language_models import contracts as language_models
from autoqec.extensions.language_models import plugin as models_plugin
from autoqec.extensions.recorded import code as recorded_code
from autoqec.extensions.slurm import plugin as slurm_plugin
from autoqec.store.layout import PACKAGED_BOARD

CONTRACTS = Path(__file__).parent / "contracts"
SCHEMAS = CONTRACTS / "schemas"
BOARD = Path(__file__).parent / "board.html"
MODULES = (
    env,
    dsl,
    profiles,
    round,
    job,
    verification_job,
    provenance,
    history,
    models_plugin,
    slurm_plugin,
    messages,
    language_models,
    verdict,
    pareto,
    board,
    recorded_code,
    noise,
    runtime,
)
MODELS: dict[str, type[Contract]] = {
    name: value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, type)
    and issubclass(value, Contract)
    and value.__module__ == module.__name__
    and name[0] != "_"
}
# Whole files and messages get a schema; their parts stand inside it.
TOP_LEVEL = (
    "EnvSpec", "PredecoderDSL", "RunnerConfig", "RoundMetrics", "JobOrder", "DetachedRun",
    "VerificationOrder", "VerificationSeeds", "VerificationResult", "Pointer", "Manifest", "RunInfo", "Begun",
    "Planned", "Nominated", "AlphaSpent", "HistoryRow", "ParetoEntry", "VerifyReport", "IdeatorResponse",
    "CoderResponse", "AnalystResponse", "ArchiveManifest",
    "BoardCircuit", "BoardDecoder", "BoardMeasurement", "BoardOrder", "BoardJobResult",
    "RecordedLayout", "RecordedManifest", "VerifiedModel",
)  # fmt: skip
# Forms that are sent to a model have short schemas; the field of the response that they become describes theirs.
SHARED_FIELDS: dict[str, type[Contract]] = {
    "IdeatorAnswer": messages.IdeatorResponse,
    "CoderAnswer": messages.CoderResponse,
}
MARKER = re.compile(r"(<!-- (fields|values): (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def schemas() -> dict[str, str]:
    """File name -> JSON Schema of every whole contract."""
    return {f"{name}.json": json.dumps(_schema(name), indent=2, ensure_ascii=False) + "\n" for name in TOP_LEVEL}


def _schema(name: str, **settings: Any) -> dict[str, Any]:
    """Return the JSON Schema of a contract, without fields that are not stored."""
    schema = MODELS[name].model_json_schema(**settings)
    for key, field in MODELS[name].model_fields.items():
        if field.exclude:
            schema["properties"].pop(key)
    return schema


def page(text: str) -> str:
    """Return the page with every table between its markers generated again."""
    makers = {"fields": _fields, "values": _values}
    return MARKER.sub(lambda found: found[1] + makers[found[2]](found[3]) + found[4], text)


def _fields(name: str) -> str:
    schema = _schema(name, ref_template="{model}")
    lines = ["| field | type | if absent | meaning |", "|---|---|---|---|"]
    required = set(schema.get("required", ()))
    shared = SHARED_FIELDS[name].model_fields if name in SHARED_FIELDS else {}
    for key, spec in schema["properties"].items():
        absent = "required" if key in required else f"`{json.dumps(spec.get('default'), ensure_ascii=False)}`"
        meaning = spec.get("description") or (shared[key].description if key in shared else "")
        lines.append(f"| `{key}` | {_type(spec)} | {_short(absent)} | {meaning} |")
    return "\n".join(lines) + "\n"


def _values(name: str) -> str:
    """The named profiles, side by side."""
    assert name == "PROFILES"
    rows = [profile.dump() for profile in profiles.PROFILES.values()]
    lines = ["| | " + " | ".join(row["name"] for row in rows) + " |", "|---" * (len(rows) + 1) + "|"]
    for key in rows[0]:
        if key != "name":
            lines.append(f"| `{key}` | " + " | ".join(f"{row[key]:,}" for row in rows) + " |")
    return "\n".join(lines) + "\n"


def _short(text: str) -> str:
    return text if len(text) <= 60 else "its defaults"


def _type(spec: dict[str, Any]) -> str:
    if "$ref" in spec:
        return str(spec["$ref"])
    if "const" in spec:
        return f"`{json.dumps(spec['const'])}`"
    if "enum" in spec:
        return ", ".join(f"`{value}`" for value in spec["enum"])
    for union in ("anyOf", "oneOf"):
        if union in spec:
            return " or ".join(_type(part) for part in spec[union])
    if spec.get("type") == "array":
        if "prefixItems" in spec:
            return "[" + ", ".join(_type(item) for item in spec["prefixItems"]) + "]"
        return f"list of {_type(spec.get('items', {}))}"
    if spec.get("type") == "object" and isinstance(spec.get("additionalProperties"), dict):
        return f"map to {_type(spec['additionalProperties'])}"
    return str(spec.get("type", "any")) + _bounds(spec)


def _bounds(spec: dict[str, Any]) -> str:
    signs = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
    parts = [f"{sign} {spec[key]:g}" for key, sign in signs if key in spec]
    if "pattern" in spec:
        parts.append("`" + spec["pattern"].replace("|", "\\|") + "`")
    if "maxLength" in spec:
        parts.append(f"at most {spec['maxLength']} characters")
    return f" ({', '.join(parts)})" if parts else ""


def board_page() -> str:
    """The page of the packaged decoder board."""
    circuits = load_circuits(PACKAGED_BOARD)
    return page_of_board(circuits, table_of_cells(circuits, board_measurements(PACKAGED_BOARD)))


def pages() -> list[Path]:
    return sorted(path for path in CONTRACTS.glob("*.md") if MARKER.search(path.read_text(encoding="utf-8")))


def main() -> None:
    SCHEMAS.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (SCHEMAS / name).write_text(text, encoding="utf-8")
    for path in pages():
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
    BOARD.write_text(board_page(), encoding="utf-8")
    assistant_files.write(CONTRACTS.parents[1], assistant_files.render(CHECKOUT_COMMAND, checkout=True))


if __name__ == "__main__":
    main()
