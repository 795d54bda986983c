"""Paths of the files of one round."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath

from autoqec.store.below import Below

VERIFICATION = "verification"


@dataclass(frozen=True)
class RoundLayout:
    """Files of one round directory."""

    dir: Path
    round: int

    config = Below("config.yaml")
    train_log = Below("train.log")
    checkpoint = Below("checkpoint.pt")
    metrics = Below("metrics.json")
    manifest = Below("artifact_manifest.json")
    manifest_error = Below("manifest_error.txt")
    train_dir = Below("train")
    progress = Below("train", "progress.csv")
    # The order for a cluster's job: written before the job is submitted, deleted when it is cancelled.
    job = Below("job.json")
    job_claim = Below("job_claim")  # the id of the one job that works on the order
    job_dir = Below("job")  # script and logs of the cluster's job
    # Order, seeds, result and logs of a verification in a cluster's job; removed when its result was read.
    verification_dir = Below(VERIFICATION)
    transcript = Below("transcript.jsonl")  # the turns of the language models
    trial_dir = Below("trial")  # files of a trial while it runs
    report_md = Below("verification_report.md")
    report_json = Below("verification_report.json")

    @property
    def pointer(self) -> Path:
        """The round's copy of its pointer."""
        return self.dir / pointer_name(self.round)


def pointer_name(number: int) -> str:
    """Return the file name of a round's pointer."""
    return f"round_{number}_pointer.json"


def pointer_on_branch(number: int) -> str:
    """Return the path of the pointer in the tree of the branch."""
    return f"round_{number}/{pointer_name(number)}"


def path_in_run(number: int, path: str | None) -> str | None:
    """Return the path of a file of a round relative to the run directory, `round_<N>/NAME`, as stored in rows."""
    return None if path is None else f"round_{number}/{PurePath(path).name}"
