"""Adds a model to the package: `python -m benchmarks.package_model NAME ARCHIVE`, an archive of a closed run."""

from __future__ import annotations

import gzip
import shutil
import sys
import tempfile
from pathlib import Path

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.provenance import RUN, VerifiedModel
from autoqec.contracts.verdict import VerifyReport
from autoqec.decoders import checkpoint
from autoqec.orchestrator.archive_format import unpack
from autoqec.store import atomic
from autoqec.store.history import History
from autoqec.store.layout import PACKAGED_MODELS, ModelLayout, RunLayout, runs_dir
from autoqec.store.round_files import read_contract

LICENCE = "Apache-2.0"


def config_of(path: Path) -> PredecoderDSL:
    """Return the config of a checkpoint."""
    return parse_dsl(checkpoint.read(path)["dsl_config"], location=str(path))


def package(name: str, archive: Path) -> VerifiedModel:
    """Copy the last VERIFIED round of an archive with its secret."""
    with tempfile.TemporaryDirectory() as place:
        members = Path(place, "members")
        members.mkdir()
        manifest = unpack(archive, members)
        assert manifest.closed, "its verification cannot be repeated without the secret"
        runs_dir(Path(place)).mkdir()
        layout = RunLayout(Path(place), manifest.run_id)
        (members / RUN).rename(layout.root)
        info = History(layout).info()
        row = [row for row in History(layout).rows() if row.verify_verdict == "VERIFIED"][-1]
        files = layout.round(row.round)
        report = read_contract(files.report_json, VerifyReport)
        assert report is not None and report.verdict == "VERIFIED"
        target = ModelLayout(PACKAGED_MODELS / name)
        atomic.make_dir(target.dir)
        copies = [(files.checkpoint, target.checkpoint), (layout.env, target.env), (files.report_json, target.report)]
        for source, copy in copies:
            shutil.copyfile(source, copy)
        content = archive.read_bytes()
        target.archive.write_bytes(gzip.compress(content, 9, mtime=0))
        model = VerifiedModel(
            name=name,
            env_name=info.env_name,
            checkpoint_sha256=sha256_bytes(target.checkpoint.read_bytes()),
            archive_sha256=sha256_bytes(content),
            run_id=info.run_id,
            round=row.round,
            licence=LICENCE,
            made_with=" ".join(["autoqec", *(info.command_line or ())[1:]]),
            versions=dict(info.versions),
            claim=report.claim,
            translation_invariant=config_of(target.checkpoint).translation_invariant,
        )
        atomic.write_json(target.info, model.dump())
    return model


if __name__ == "__main__":
    print(package(sys.argv[1], Path(sys.argv[2])).claim)
