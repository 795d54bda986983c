"""Paths of the files of one round."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath

VERIFICATION = "verification"


@dataclass(frozen=True)
class RoundLayout:
    """Files of one round directory."""

    dir: Path
    round: int

    @property
    def config(self) -> Path:
        """`config.yaml`."""
        return self.dir / "config.yaml"

    @property
    def train_log(self) -> Path:
        """`train.log`."""
        return self.dir / "train.log"

    @property
    def checkpoint(self) -> Path:
        """`checkpoint.pt`."""
        return self.dir / "checkpoint.pt"

    @property
    def metrics(self) -> Path:
        """`metrics.json`."""
        return self.dir / "metrics.json"

    @property
    def manifest(self) -> Path:
        """`artifact_manifest.json`."""
        return self.dir / "artifact_manifest.json"

    @property
    def manifest_error(self) -> Path:
        """`manifest_error.txt`."""
        return self.dir / "manifest_error.txt"

    @property
    def pointer(self) -> Path:
        """The round's copy of its pointer."""
        return self.dir / pointer_name(self.round)

    @property
    def train_dir(self) -> Path:
        """`train`."""
        return self.dir / "train"

    @property
    def progress(self) -> Path:
        """`progress.csv`."""
        return self.train_dir / "progress.csv"

    @property
    def job(self) -> Path:
        """The order for a cluster's job: written before the job is submitted, deleted when it is cancelled."""
        return self.dir / "job.json"

    @property
    def job_claim(self) -> Path:
        """The id of the one job that works on the order."""
        return self.dir / "job_claim"

    @property
    def job_dir(self) -> Path:
        """Script and logs of the cluster's job."""
        return self.dir / "job"

    @property
    def verification_dir(self) -> Path:
        """Order, seeds, result and logs of a verification in a cluster's job; removed when its result was read."""
        return self.dir / VERIFICATION

    @property
    def transcript(self) -> Path:
        """`transcript.jsonl`: the turns of the language models."""
        return self.dir / "transcript.jsonl"

    @property
    def trial_dir(self) -> Path:
        """Files of a trial while it runs."""
        return self.dir / "trial"

    @property
    def report_md(self) -> Path:
        """`verification_report.md`."""
        return self.dir / "verification_report.md"

    @property
    def report_json(self) -> Path:
        """`verification_report.json`."""
        return self.dir / "verification_report.json"


def pointer_name(number: int) -> str:
    """Return the file name of a round's pointer."""
    return f"round_{number}_pointer.json"


def pointer_on_branch(number: int) -> str:
    """Return the path of the pointer in the tree of the branch."""
    return f"round_{number}/{pointer_name(number)}"


def path_in_run(number: int, path: str | None) -> str | None:
    """Return the path of a file of a round relative to the run directory, `round_<N>/NAME`, as stored in rows."""
    return None if path is None else f"round_{number}/{PurePath(path).name}"
