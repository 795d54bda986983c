"""The only way into git: GitPython's command layer, every call with explicit directories and a clean environment.

Hooks, fsmonitor, signing, gc and global configuration are off; objects and refs are fsynced; the identity is ours.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from autoqec.errors import DiskFailed, InputError
from autoqec.host.gitlock import locked
from autoqec.host.gittypes import (
    Commit,
    DiffEntry,
    GitFailed,
    MergeConflict,
    RefUpdate,
    TreeEntry,
    Worktree,
    message_with,
    parse_commit,
    parse_diff,
    parse_status,
    parse_tree,
    text,
)

__all__ = ["Commit", "DiffEntry", "GitFailed", "MergeConflict", "RefUpdate", "Repo", "TreeEntry", "Worktree"]

ZERO = "0" * 40
MAX_EXTRACT = 64 * 2**20
_OLDEST = (2, 38)  # merge-tree --write-tree
_CONFIG = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.fsync": "all",
    "core.autocrlf": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.quotePath": "false",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "merge.directoryRenames": "false",
    "protocol.ext.allow": "never",
    "submodule.recurse": "false",
    "worktree.useRelativePaths": "false",
}
_IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "AutoQEC"), ("EMAIL", "autoqec@localhost"))
}
_ENVIRONMENT = {
    **_IDENTITY,
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_EDITOR": "true",
}


def _execute(
    cwd: Path, arguments: Sequence[str], *, stdin: bytes = b"", env: Mapping[str, str], pass_fds: Sequence[int] = ()
) -> tuple[int, bytes, str]:
    """Exit status, stdout and stderr of one git. `env -i`: GitPython would hand our whole environment down."""
    try:
        from git.cmd import Git
    except ImportError as error:
        raise InputError("git is not installed", mend="install git 2.38 or newer") from error
    keep = {name: os.environ[name] for name in ("PATH", "TMPDIR", "LD_PRELOAD") if name in os.environ}
    settings = [item for key, value in _CONFIG.items() for item in ("-c", f"{key}={value}")]
    clean = [f"{name}={value}" for name, value in {**keep, **env}.items()]
    with tempfile.TemporaryFile() as source:
        source.write(stdin)
        source.seek(0)
        status, out, err = Git(str(cwd)).execute(
            ["env", "-i", *clean, "git", "--no-pager", *settings, *arguments],
            istream=source,
            with_extended_output=True,
            with_exceptions=False,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
            # Ctrl-C is ours to answer: git finishes what it is at.
            start_new_session=True,
            pass_fds=tuple(pass_fds),
        )
    return status, out, err


class Repo:
    """A repository with a work tree. Commits are named by full SHA, refs by full name, branches by short name.

    Every method raises GitFailed in git's words, DiskFailed where the disk is full or broken.
    """

    def __init__(self, root: Path, common: Path) -> None:
        self.root, self.common = root, common

    @classmethod
    def discover(cls, cwd: Path | str) -> Repo:
        """The repository that holds `cwd`; from a linked worktree, its main one. InputError where there is none."""
        cwd = Path(cwd).resolve()
        mend = "go to a git repository, or make one: `autoqec init DIR`"
        if not cwd.is_dir():
            raise InputError("there is no such directory", where=str(cwd), mend=mend)
        # The user's own configuration counts here: safe.directory may stand in it.
        env = _IDENTITY | {"LC_ALL": "C", "HOME": os.environ.get("HOME", "/")}
        ask = ["rev-parse", "--path-format=absolute", "--show-toplevel", "--git-dir", "--git-common-dir"]
        _check_version(cwd)
        status, out, err = _execute(cwd, [*ask, "--show-object-format"], env=env)
        if status != 0:
            raise InputError(_reason(err, "not in a git repository"), where=str(cwd), mend=mend)
        top, git_dir, common, objects = (Path(line) for line in text(out).splitlines())
        if str(objects) != "sha1":
            raise InputError(f"repositories with {objects} object names are not supported", where=str(top), mend=mend)
        if git_dir != common:
            top = cls(top, common)._main_worktree()
        return cls(top, common)

    @classmethod
    def init(cls, directory: Path | str, *, branch: str = "main") -> Repo:
        """A new, empty repository at `directory` (which exists)."""
        directory = Path(directory).resolve()
        _check_version(directory)
        status, _, err = _execute(
            directory, ["init", "-q", "--template=", f"--initial-branch={branch}", "."], env=_ENVIRONMENT
        )
        if status != 0:
            raise _failure(["init"], err)
        return cls(directory, directory / ".git")

    def _main_worktree(self) -> Path:
        listed = text(self._git("worktree", "list", "--porcelain", "-z")).split("\0")
        top = Path(listed[0].removeprefix("worktree "))
        if "bare" in listed[: listed.index("")]:
            raise InputError("the repository is bare", where=str(top), mend="clone it with a work tree")
        return top

    # ---- calling

    def _run(
        self, arguments: Sequence[str], *, worktree: Path | None = None, stdin: bytes = b"", lock: int | None = None
    ) -> tuple[int, bytes, str]:
        git_dir = self.common if worktree is None else self._admin(worktree)
        place = [f"--git-dir={git_dir}", f"--work-tree={worktree or self.root}"]
        fds = () if lock is None else (lock,)
        return _execute(worktree or self.root, [*place, *arguments], stdin=stdin, env=_ENVIRONMENT, pass_fds=fds)

    def _git(
        self, *arguments: str, worktree: Path | None = None, stdin: bytes = b"", lock: int | None = None
    ) -> bytes:
        status, out, err = self._run(arguments, worktree=worktree, stdin=stdin, lock=lock)
        if status != 0:
            raise _failure(arguments, err)
        return out

    def _line(self, *arguments: str, worktree: Path | None = None, stdin: bytes = b"", lock: int | None = None) -> str:
        return text(self._git(*arguments, worktree=worktree, stdin=stdin, lock=lock)).strip()

    def _admin(self, worktree: Path) -> Path:
        """git's own directory of a linked worktree, from git's records alone: its `.git` file is not believed."""
        for found in self.worktrees():
            if found.path == _absolute(worktree):
                return found.admin
        raise GitFailed("is no worktree of this repository", where=str(worktree), mend="git worktree list")

    # ---- reading

    def has_commits(self) -> bool:
        return self.rev_parse("HEAD") is not None

    def head_sha(self, worktree: Path | None = None) -> str:
        """Commit that is checked out; InputError before the first one."""
        status, out, _ = self._run(["rev-parse", "--verify", "-q", "HEAD^{commit}"], worktree=worktree)
        if status != 0:
            raise InputError(
                "the repository has no commit yet", where=str(self.root), mend="git add -A && git commit -m 'Start'"
            )
        return text(out).strip()

    def head_ref(self) -> str | None:
        """Short name of the branch that is checked out; None when HEAD is detached."""
        status, out, _ = self._run(["symbolic-ref", "-q", "HEAD"])
        return text(out).strip().removeprefix("refs/heads/") if status == 0 else None

    def rev_parse(self, rev: str) -> str | None:
        """Commit that `rev` names, or None."""
        status, out, _ = self._run(["rev-parse", "--verify", "-q", "--end-of-options", f"{rev}^{{commit}}"])
        return text(out).strip() if status == 0 else None

    def refs(self, prefix: str) -> dict[str, str]:
        """Full ref name -> sha for every ref below `prefix` (a directory of refs, such as refs/heads/exp)."""
        out = self._git("for-each-ref", "--format=%(objectname) %(refname)", "--", prefix.rstrip("/"))
        pairs = (line.split(" ", 1) for line in text(out).splitlines())
        return {ref: sha for sha, ref in pairs}

    def commit_info(self, sha: str) -> Commit:
        return parse_commit(sha, self._git("cat-file", "commit", sha))

    def parents(self, sha: str) -> tuple[str, ...]:
        return self.commit_info(sha).parents

    def commit_message(self, sha: str) -> str:
        return self.commit_info(sha).message

    def commit_trailers(self, sha: str) -> dict[str, str]:
        return self.commit_info(sha).trailers

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Whether `older` is `newer` or stands below it."""
        status, _, err = self._run(["merge-base", "--is-ancestor", older, newer])
        if status not in (0, 1):
            raise _failure(["merge-base"], err)
        return status == 0

    def objects(self, names: Sequence[str]) -> list[tuple[str, bytes] | None]:
        """(sha, bytes) of each object that is named, `<sha>` or `<sha>:<path>`; None where there is none.

        One git however many names; no name may hold a line break.
        """
        out = self._git("cat-file", "--batch", stdin="".join(f"{name}\n" for name in names).encode())
        found: list[tuple[str, bytes] | None] = []
        at = 0
        for _ in names:
            end = out.index(b"\n", at)
            head = out[at:end].split()
            if head[-1] in (b"missing", b"ambiguous"):
                found.append(None)
                at = end + 1
            else:
                size = int(head[2])
                found.append((head[0].decode(), out[end + 1 : end + 1 + size]))
                at = end + size + 2
        return found

    def ls_tree(self, sha: str, path: str = "") -> list[TreeEntry]:
        """Every file of a commit's tree (below `path`), symlinks and submodules included."""
        arguments = ["ls-tree", "-r", "-l", "-z", "--full-tree", sha, *(["--", path] if path else [])]
        return parse_tree(self._git(*arguments))

    def show_file(self, sha: str, path: str, *, max_bytes: int = MAX_EXTRACT) -> bytes | None:
        """Bytes of a regular file of a commit; None where there is none (or it is a symlink, or a directory)."""
        for entry in self.ls_tree(sha, path):
            if entry.path == path and entry.regular:
                if (entry.size or 0) > max_bytes:
                    raise GitFailed(f"{path} is larger than {max_bytes} bytes", where=sha)
                return self._git("cat-file", "blob", entry.oid)
        return None

    def diff_entries(self, base: str, tip: str) -> list[DiffEntry]:
        """Paths that differ between two commits, with their modes; attributes and textconv play no part."""
        return parse_diff(self._git("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", base, tip))

    def diff_text(self, base: str, tip: str, paths: Sequence[str] = ()) -> str:
        """Unified diff for people."""
        plain = ["--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"]
        return self._git("diff-tree", "-p", *plain, base, tip, "--", *paths).decode("utf-8", "replace")

    def dirty_paths(self, pathspec: str | Sequence[str] = (), *, worktree: Path | None = None) -> list[str]:
        """Paths that differ from HEAD or are untracked; ignored files and insides of submodules left out."""
        paths = [pathspec] if isinstance(pathspec, str) else [*pathspec]
        flags = ["--porcelain=v1", "-z", "--untracked-files=all", "--ignore-submodules=all", "--no-renames"]
        return parse_status(self._git("status", *flags, "--", *paths, worktree=worktree))

    def uncommitted_patch(self, worktree: Path) -> bytes:
        """Everything in a worktree that HEAD does not hold, new files included, as a binary patch; b"" for nothing."""
        with locked(self.common) as lock:
            self._git("add", "-A", "-f", "--", ".", worktree=worktree, lock=lock)
            plain = ["--cached", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"]
            return self._git("diff-index", "-p", *plain, "HEAD", "--", worktree=worktree)

    def fsck(self) -> list[str]:
        """Complaints of `git fsck`; [] for a whole repository."""
        status, out, err = self._run(["fsck", "--no-dangling", "--no-progress"])
        lines = [line for line in (text(out) + err).splitlines() if line and not line.startswith("notice:")]
        return lines or ([f"git fsck left with {status}"] if status else [])

    # ---- worktrees

    def worktrees(self) -> list[Worktree]:
        """Linked worktrees, by git's records; also those whose directory is gone."""
        found = []
        for admin in sorted(self.common.glob("worktrees/*")):
            place, head = _read(admin / "gitdir"), _read(admin / "HEAD")
            if place:
                path = _absolute(Path(os.path.join(admin, place)).parent)
                branch = head.removeprefix("ref: refs/heads/") if head.startswith("ref: refs/heads/") else None
                found.append(Worktree(path, branch, admin))
        return found

    def worktree_add(self, path: Path, branch: str, base: str | None) -> None:
        """Check `branch` out at `path`; made at commit `base`, or with None an existing branch."""
        path = _absolute(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.common) as lock:
            if base is not None:
                self._update_refs([RefUpdate(f"refs/heads/{branch}", base, None)], lock)
            self._git("worktree", "add", "-q", "--", str(path), branch, lock=lock)

    def worktree_remove(self, path: Path) -> None:
        """Remove the checkout and git's record of it; harmless when either is gone. The branch stays."""
        path = _absolute(path)
        with locked(self.common):
            for found in [entry for entry in self.worktrees() if entry.path == path]:
                _rmtree(path)
                _rmtree(found.admin)

    def worktree_prune(
        self, under: Path | None = None, *, prefixes: Sequence[str] = ("exp-", "quarantine-")
    ) -> list[Path]:
        """Drop records of worktrees whose directory is gone: those `under` a directory (default: `.worktrees`).

        Also those that a killed `worktree add` left without a place, known by their name's prefix.
        """
        under = _absolute(under or self.root / ".worktrees")
        removed = []
        with locked(self.common):
            known = {entry.admin: entry.path for entry in self.worktrees()}
            for admin in sorted(self.common.glob("worktrees/*")):
                path = known.get(admin)
                torn = path is None and admin.name.startswith(tuple(prefixes))
                if torn or (path is not None and path.is_relative_to(under) and not path.exists()):
                    _rmtree(admin)
                    removed.append(admin)
        return removed

    # ---- writing

    def update_refs(self, updates: Sequence[RefUpdate]) -> None:
        """All or none. A rename is one transaction: delete the old name, make the new one."""
        with locked(self.common) as lock:
            self._update_refs(updates, lock)

    def rename_branch(self, old: str, new: str, sha: str) -> None:
        """exp/… to quarantine/… and back, if `old` still stands at `sha`."""
        self.update_refs([RefUpdate(f"refs/heads/{new}", sha, None), RefUpdate(f"refs/heads/{old}", None, sha)])

    def _update_refs(self, updates: Sequence[RefUpdate], lock: int) -> None:
        lines = ["start"]
        for update in updates:
            if update.new is None:
                lines.append(f"delete {update.ref}\0{update.old or ''}")
            elif update.old is None:
                lines.append(f"create {update.ref}\0{update.new}")
            else:
                lines.append(f"update {update.ref}\0{update.new}\0{update.old}")
        stdin = "".join(f"{line}\0" for line in [*lines, "prepare", "commit"]).encode()
        self._git("update-ref", "--create-reflog", "-z", "--stdin", stdin=stdin, lock=lock)

    def commit(
        self, worktree: Path, paths: Sequence[str], message: str, trailers: Mapping[str, str] | None = None
    ) -> str:
        """Commit exactly `paths` (files or directories from the worktree's top, ignored ones too); returns the sha.

        No hook runs and no index survives from before: what else lies in the worktree stays out. May be empty.
        """
        for path in paths:
            if path.startswith("/") or {"..", ".git"} & set(PurePosixPath(path).parts):
                raise GitFailed(f"{path!r} is no path inside a worktree", where=str(worktree))
        literal = [f":(top,literal){PurePosixPath(path)}" for path in paths]
        with locked(self.common) as lock:
            head = self.head_sha(worktree)
            self._git("read-tree", "HEAD", worktree=worktree, lock=lock)
            self._git("add", "-A", "-f", "--", *literal, worktree=worktree, lock=lock)
            tree = self._line("write-tree", worktree=worktree, lock=lock)
            return self._advance(worktree, tree, [head], message, trailers, lock)

    def commit_all(self, message: str) -> str:
        """Commit everything in the main work tree that is not ignored; returns the sha."""
        with locked(self.common) as lock:
            self._git("add", "-A", "--", ".", lock=lock)
            self._git("commit", "-q", "--no-verify", "--allow-empty", "-F", "-", stdin=message.encode(), lock=lock)
        return self.head_sha()

    def _advance(
        self,
        worktree: Path,
        tree: str,
        parents: Sequence[str],
        message: str,
        trailers: Mapping[str, str] | None,
        lock: int,
    ) -> str:
        """Commit `tree` on top of parents[0], where the worktree's branch must still stand."""
        sha = self._commit_tree(tree, parents, message_with(message, dict(trailers or {})))
        self._git("update-ref", "-m", "autoqec: commit", "HEAD", sha, parents[0], worktree=worktree, lock=lock)
        return sha

    def _commit_tree(self, tree: str, parents: Sequence[str], message: str) -> str:
        above = [item for parent in parents for item in ("-p", parent)]
        return self._line("commit-tree", *above, "-F", "-", tree, stdin=message.encode("utf-8", "replace"))

    def merge_tree(self, tips: Sequence[str]) -> str:
        """Tree that merges the commits, in the order given; touches no ref and no file. Raises MergeConflict."""
        at, merged = tips[0], self.commit_info(tips[0]).tree
        for other in tips[1:]:
            arguments = ["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", at, other]
            status, out, err = self._run(arguments)
            fields = text(out).split("\0")
            if status == 1:
                raise MergeConflict(tuple(sorted(set(filter(None, fields[1:])))))
            if status != 0:
                raise _failure(arguments, err)
            merged = fields[0].strip()
            at = self._commit_tree(merged, [at, other], "merged on the way")
        return merged

    def merge(
        self, worktree: Path, tips: Sequence[str], message: str, trailers: Mapping[str, str] | None = None
    ) -> str:
        """Merge commits into the worktree's branch as one commit with all parents; returns its sha.

        Raises MergeConflict, and then branch and worktree are as before.
        """
        with locked(self.common) as lock:
            head = self.head_sha(worktree)
            tree = self.merge_tree([head, *tips])
            self._git("read-tree", "-m", "-u", head, tree, worktree=worktree, lock=lock)
            return self._advance(worktree, tree, [head, *tips], message, trailers, lock)

    def extract(self, sha: str, subdir: str, dest: Path, *, max_bytes: int = MAX_EXTRACT) -> list[str]:
        """Write the regular files below `subdir` of a commit into `dest` (made, or empty), bytes as committed.

        Attributes, filters and executable bits play no part. Raises GitFailed for anything that is no regular file,
        and beyond `max_bytes`; returns the paths relative to `dest`.
        """
        entries = self.ls_tree(sha, subdir)
        top = PurePosixPath(subdir)
        for entry in entries:
            if not entry.regular:
                raise GitFailed(f"{entry.path} is no regular file (mode {entry.mode})", where=sha)
        if sum(entry.size or 0 for entry in entries) > max_bytes:
            raise GitFailed(f"{subdir} is larger than {max_bytes} bytes", where=sha)
        dest.mkdir(parents=True, exist_ok=True)
        if any(dest.iterdir()):
            raise GitFailed("the directory to extract to is not empty", where=str(dest))
        names = []
        for entry, data in zip(entries, self._blobs([entry.oid for entry in entries]), strict=True):
            name = PurePosixPath(entry.path).relative_to(top)
            if any(part in ("", ".", "..", ".git") for part in name.parts):
                raise GitFailed(f"{entry.path!r} is no name for a file", where=sha)
            target = dest / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            names.append(str(name))
        return names

    def _blobs(self, oids: Sequence[str]) -> list[bytes]:
        out = self._git("cat-file", "--batch", stdin="".join(f"{oid}\n" for oid in oids).encode())
        blobs, at = [], 0
        for _ in oids:
            end = out.index(b"\n", at)
            size = int(out[at:end].split()[2])
            blobs.append(out[end + 1 : end + 1 + size])
            at = end + size + 2
        return blobs

    def bundle_create(self, path: Path, revs: Sequence[str]) -> None:
        """A bundle of refs (`^rev` leaves history out) at `path`, whole or not at all."""
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            self._git("bundle", "create", "-q", str(_absolute(temporary)), *revs)
            with open(temporary, "rb") as stream:
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _absolute(path: Path) -> Path:
    """Absolute, with the parent's links resolved; the last component itself is not followed."""
    return Path(os.path.realpath(path.parent)) / path.name


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _rmtree(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
        return
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DiskFailed(f"could not be removed: {error.strerror}", where=str(path), mend=f"rm -r {path}") from error


def _check_version(cwd: Path) -> None:
    _, out, _ = _execute(cwd, ["version"], env=_ENVIRONMENT)
    words = text(out).split()
    numbers = tuple(int(part) for part in words[2].split(".")[:2]) if len(words) > 2 else (0, 0)
    if numbers < _OLDEST:
        raise InputError(f"git {'.'.join(map(str, numbers))} is too old", mend="install git 2.38 or newer")


def _reason(err: str, otherwise: str) -> str:
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
    return fatal[0].removeprefix("fatal: ").removeprefix("error: ") if fatal else otherwise


def _failure(arguments: Sequence[str], err: str) -> GitFailed | DiskFailed:
    if any(words in err for words in ("No space left", "Input/output error", "Disk quota", "Read-only file system")):
        return DiskFailed(_reason(err, "git could not write"), where="git", mend="free space, then start again")
    return GitFailed(f"git {arguments[0]}: {_reason(err, 'failed without a word')}")
