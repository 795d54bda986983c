"""The methods of `Repo` that only read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from autoqec.errors import UsageError
from autoqec.system.git import command
from autoqec.system.git.errors import GitError, git_error
from autoqec.system.git.parsing import (
    Commit,
    DiffEntry,
    Header,
    TreeEntry,
    Worktree,
    parse_commit,
    parse_diff,
    parse_objects,
    parse_tree,
    text,
)

MAX_EXTRACT = 64 * 2**20
PLAIN_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-renames")


class GitReader:
    """Methods of `Repo` that only read."""

    def __init__(self, root: Path, common: Path) -> None:
        self.root, self.common = root, common

    def _run(
        self, arguments: Sequence[str], *, worktree: Path | None = None, stdin: bytes = b"", lock: int | None = None
    ) -> tuple[int, bytes, str]:
        """Run one git; return exit status, stdout and stderr. `lock` stays open in it."""
        git_dir = self.common if worktree is None else self._admin(worktree)
        dir_options = [f"--git-dir={git_dir}", f"--work-tree={worktree or self.root}"]
        fds = () if lock is None else (lock,)
        # Unpacking is where a few bytes could ask for any amount of memory.
        env = command.ENVIRONMENT | ({"GIT_ALLOC_LIMIT": "1g"} if arguments[0] == "bundle" else {})
        return command.execute(worktree or self.root, [*dir_options, *arguments], stdin=stdin, env=env, pass_fds=fds)

    def _git(self, *arguments: str, worktree: Path | None = None, stdin: bytes = b"", lock: int | None = None) -> bytes:
        status, out, err = self._run(arguments, worktree=worktree, stdin=stdin, lock=lock)
        if status != 0:
            raise git_error(arguments, err, self.common)
        return out

    def _line(self, *arguments: str, worktree: Path | None = None, stdin: bytes = b"", lock: int | None = None) -> str:
        return text(self._git(*arguments, worktree=worktree, stdin=stdin, lock=lock)).strip()

    def _admin(self, worktree: Path) -> Path:
        """Return git's own directory of a linked worktree, from git's records alone: its `.git` file is not trusted."""
        path = absolute(worktree)
        for record in self.worktrees():
            if record.path == path:
                return record.admin
        raise GitError("is not a worktree of this repository", location=str(worktree), hint="git worktree list")

    def head_sha(self, worktree: Path | None = None) -> str:
        """Return the commit that is checked out; UsageError before the first one."""
        status, out, _ = self._run(["rev-parse", "--verify", "-q", "HEAD^{commit}"], worktree=worktree)
        if status != 0:
            raise UsageError(
                "the repository has no commit yet", location=str(self.root), hint="git add -A && git commit -m 'Start'"
            )
        return text(out).strip()

    def head_ref(self) -> str | None:
        """Return the short name of the branch that is checked out; None if HEAD is detached."""
        status, out, _ = self._run(["symbolic-ref", "-q", "HEAD"])
        return text(out).strip().removeprefix("refs/heads/") if status == 0 else None

    def rev_parse(self, rev: str) -> str | None:
        """Return the commit that `rev` names, or None."""
        status, out, _ = self._run(["rev-parse", "--verify", "-q", "--end-of-options", f"{rev}^{{commit}}"])
        return text(out).strip() if status == 0 else None

    def refs(self, *prefixes: str) -> dict[str, str]:
        """Return full ref name -> sha for every ref below a prefix (a directory of refs, such as refs/heads/exp)."""
        patterns = [prefix.rstrip("/") for prefix in prefixes]
        out = self._git("for-each-ref", "--format=%(objectname) %(refname)", "--", *patterns)
        pairs = (line.split(" ", 1) for line in text(out).splitlines())
        return {ref: sha for sha, ref in pairs}

    def commit_info(self, sha: str) -> Commit:
        """Return the commit object of `sha`."""
        return parse_commit(sha, self._contents([f"{sha}^{{commit}}"])[0])

    def objects(self, names: Sequence[str]) -> list[tuple[str, bytes] | None]:
        """Return (sha, bytes) of each named object, `<sha>` or `<sha>:<path>`; None for one that does not exist.

        No name may contain a line break.
        """
        found = parse_objects(self._ask("--batch", names), has_content=True)
        return [None if entry is None else (entry[0][0], entry[1]) for entry in found]

    def sizes(self, names: Sequence[str]) -> list[Header | None]:
        """Return (sha, type, bytes) of each named object, as `objects` takes names; None if it does not exist."""
        found = parse_objects(self._ask("--batch-check", names), has_content=False)
        return [None if entry is None else entry[0] for entry in found]

    def _ask(self, request: str, names: Sequence[str]) -> bytes:
        for name in names:
            if "\n" in name:
                raise GitError(f"{name!r} is not a name for an object")
        stdin = "".join(f"{name}\n" for name in names).encode("utf-8", "surrogateescape")
        return self._git("cat-file", request, stdin=stdin) if names else b""

    def ls_tree(self, sha: str, path: str = "") -> list[TreeEntry]:
        """Return every file of a commit's tree (below `path`), symbolic links and submodules included."""
        options = ["-r", "-z", "--long", "--full-tree", "--end-of-options"]
        return parse_tree(self._git("ls-tree", *options, f"{sha}^{{tree}}", *([path] if path else [])))

    def show_file(self, sha: str, path: str, *, max_bytes: int = MAX_EXTRACT) -> bytes | None:
        """Return the bytes of a regular file of a commit; None if it does not exist or is of another kind."""
        for entry in self.ls_tree(sha, path):
            if entry.path == path and entry.regular:
                if entry.size > max_bytes:
                    raise GitError(f"{path} is larger than {max_bytes} bytes", location=sha)
                return self._contents([entry.oid])[0]
        return None

    def _contents(self, names: Sequence[str]) -> list[bytes]:
        found = self.objects(names)
        if None in found:
            raise GitError(f"object {names[found.index(None)]} is missing", location=str(self.common))
        return [each[1] for each in found if each is not None]

    def diff_entries(self, base: str, tip: str) -> list[DiffEntry]:
        """Return the paths that differ between two commits, with their modes; attributes have no effect."""
        options = ["-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--end-of-options"]
        return parse_diff(self._git("diff-tree", *options, base, tip))

    def diff_text(self, base: str, tip: str, paths: Sequence[str] = ()) -> str:
        """Return the unified diff of two commits."""
        out = self._git("diff-tree", "-p", *PLAIN_DIFF, "--end-of-options", base, tip, "--", *paths)
        return out.decode("utf-8", "replace")

    def dirty_paths(self, pathspec: str | Sequence[str] = (), *, worktree: Path | None = None) -> list[str]:
        """Return paths that differ from HEAD or are untracked, without ignored files and insides of submodules."""
        paths = [pathspec] if isinstance(pathspec, str) else [*pathspec]
        flags = ["--porcelain=v1", "-z", "--untracked-files=all", "--ignore-submodules=all", "--no-renames"]
        lines = text(self._git("status", *flags, "--", *paths, worktree=worktree)).split("\0")
        return sorted({line[3:] for line in lines if line})

    def config(self, name: str) -> str | None:
        """Return the value of a key in the repository's configuration (no other is read); None if it is not set."""
        status, out, _ = self._run(["config", "--get", name])
        return text(out).removesuffix("\n") if status == 0 else None

    def filter_commands(self, driver: str) -> list[str]:
        """Commands of a filter driver in the repository's own configuration; [] if it has none."""
        commands = (self.config(f"filter.{driver}.{name}") for name in ("process", "clean", "smudge"))
        return [command for command in commands if command]

    def tracked_paths(self) -> list[str]:
        """Return every path in the index."""
        return [path for path in text(self._git("ls-files", "-z")).split("\0") if path]

    def attributes(self, names: Sequence[str], paths: Sequence[str]) -> list[tuple[str, str, str]]:
        """(path, attribute, value) for each of `names` that has a value at one of `paths`."""
        stdin = "".join(f"{path}\0" for path in paths).encode("utf-8", "surrogateescape")
        fields = text(self._git("check-attr", "--stdin", "-z", *names, stdin=stdin)).split("\0")
        found = zip(fields[0:-1:3], fields[1::3], fields[2::3], strict=True)
        return [triple for triple in found if triple[2] not in ("unspecified", "unset", "set")]

    def worktrees(self) -> list[Worktree]:
        """Return the linked worktrees of git's records, also those without a directory; damaged ones are left out.

        `git worktree list` does not tell git's directory of each.
        """
        found = []
        for admin in sorted(self.common.glob("worktrees/*")):
            git_file = Path(os.path.join(admin, _read(admin / "gitdir")))
            if git_file.name == ".git":
                found.append(Worktree(absolute(git_file.parent), admin))
        return found

    def checked_out_branches(self, *, except_worktrees: Iterable[Path] = ()) -> set[str]:
        """Short names of the branches that HEAD of the main worktree, or of a linked one, stands for.

        except_worktrees: paths of linked worktrees that do not count; a record of the same name whose place is gone
        is taken for one of them, since the repository was moved.
        """
        main, *linked = text(self._git("worktree", "list", "--porcelain", "-z")).split("\0\0")
        counted = {found.path for found in self.worktrees()}  # git lists damaged records, too
        skipped = {absolute(path) for path in except_worktrees} if counted else set()  # thousands, mostly of none
        names = {path.name for path in skipped}
        counted -= {path for path in counted if path in skipped or (path.name in names and not path.exists())}
        branches = set()
        for record in (main, *linked):
            fields = dict(line.partition(" ")[::2] for line in record.split("\0") if line)
            if "branch" in fields and (record is main or absolute(Path(fields["worktree"])) in counted):
                branches.add(fields["branch"].removeprefix("refs/heads/"))
        return branches

    def extract(self, sha: str, subdir: str, dest: Path, *, max_bytes: int = MAX_EXTRACT) -> list[str]:
        """Write the regular files below `subdir` of a commit into `dest`, as committed; return their relative paths.

        Attributes, filters and executable bits have no effect.

        Raises:
            GitError: There is an entry that is not a regular file, or more than `max_bytes`.
        """
        entries = self.ls_tree(sha, subdir)
        top = PurePosixPath(subdir)
        for entry in entries:
            if not entry.regular:
                raise GitError(f"{entry.path} is not a regular file (mode {entry.mode})", location=sha)
        if sum(entry.size for entry in entries) > max_bytes:
            raise GitError(f"{subdir} is larger than {max_bytes} bytes", location=sha)
        dest.mkdir(parents=True, exist_ok=True)
        if any(dest.iterdir()):
            raise GitError("the directory to extract to is not empty", location=str(dest))
        names = []
        for entry, data in zip(entries, self._contents([entry.oid for entry in entries]), strict=True):
            name = PurePosixPath(entry.path).relative_to(top)
            if any(part in ("", ".", "..", ".git") for part in name.parts):
                raise GitError(f"{entry.path!r} is not a valid file name", location=sha)
            target = dest / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            names.append(str(name))
        return names


def absolute(path: Path) -> Path:
    """Return the absolute path with the parent's links resolved; the last component itself is not followed."""
    return Path(os.path.realpath(path.parent)) / path.name


def _read(path: Path) -> str:
    """Return the text of a small file of git; "" if it is missing, or holds NULs after a power cut."""
    try:
        text = path.read_text(errors="replace").strip()
    except OSError:
        return ""
    return "" if "\0" in text else text
