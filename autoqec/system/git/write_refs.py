"""The methods of `Repo` that write refs and bundles, under the lock of the repository."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from autoqec.system.git import command
from autoqec.system.git.lock import RepositoryLock
from autoqec.system.git.parsing import GitError, RefUpdate
from autoqec.system.git.read import GitReader, absolute, git_error
from autoqec.system.git.ref_writer import ARGUMENTS, RefWriter, WriterEndedError
from autoqec.system.git.trees import check_trees, largest_checkout


class GitRefs(GitReader):
    """Methods of `Repo` that write refs and bundles."""

    def __init__(self, root: Path, common: Path) -> None:
        super().__init__(root, common)
        self._lock = RepositoryLock(common)
        arguments = [f"--git-dir={common}", *ARGUMENTS]
        self._refs = RefWriter(lambda lock: command.start(root, arguments, env=command.ENVIRONMENT, pass_fds=(lock,)))

    def repair(self) -> None:
        """Remove the lock files that a dead writer of this program left; every other call that writes does so too."""
        with self._lock.hold():
            pass

    def update_refs(self, updates: Sequence[RefUpdate]) -> None:
        """Update all refs or none. A rename is one transaction: delete the old name, create the new one."""
        with self._lock.hold() as lock:
            self._update_refs(updates, lock)

    def _update_refs(self, updates: Sequence[RefUpdate], lock: int) -> None:
        changed = {update.ref.removeprefix("refs/heads/") for update in updates if update.old is not None}
        if changed and (in_use := sorted(changed & self.checked_out_branches())):
            hint = "check out another branch there (`git worktree list`), then try again"
            raise GitError(f"branch {in_use[0]} is checked out, so it is neither moved nor deleted", hint=hint)
        self._write_refs(updates, lock)

    def _write_refs(self, updates: Sequence[RefUpdate], lock: int) -> None:
        try:
            self._refs.write(updates, lock, self._lock.origin)
        except WriterEndedError as error:
            raise git_error(ARGUMENTS, str(error), self.common) from error

    def bundle_create(self, path: Path, revs: Sequence[str]) -> None:
        """Write a bundle of refs (`^rev` excludes history) to `path`, whole or not at all."""
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            self._git("bundle", "create", "-q", str(absolute(temporary)), "--end-of-options", *revs)
            with open(temporary, "rb") as stream:
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def unbundle(self, path: Path, refs: Mapping[str, str]) -> None:
        """Import the objects of a bundle and create refs (full name -> sha), all or none.

        No transport of git is involved, so that neither the path nor the content of the file can name a command.

        Raises:
            GitError: The bundle is damaged, incomplete or of a kind that this program does not write.
        """
        _check_bundle(path)
        with self._lock.hold() as lock:
            self._git("bundle", "unbundle", "--end-of-options", str(absolute(path)), lock=lock)
            check_trees(self, list(refs.values()), max_bytes=largest_checkout(path))
            tips = "".join(f"{sha}\n" for sha in refs.values()).encode()
            self._git("rev-list", "--objects", "--quiet", "--stdin", stdin=tips, lock=lock)
            self._update_refs([RefUpdate(ref, sha, None) for ref, sha in sorted(refs.items())], lock)


_BUNDLES = (b"# v2 git bundle\n", b"# v3 git bundle\n@object-format=sha1\n")


def _check_bundle(path: Path) -> None:
    with open(path, "rb") as stream:
        head = stream.read(max(map(len, _BUNDLES)) + 1)
    if not head.startswith(_BUNDLES) or head.startswith(_BUNDLES[1] + b"@"):
        raise GitError("it is not a git bundle of complete branches")
