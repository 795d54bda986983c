"""Every attack in every sandbox backend that runs here, and what must work inside."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoqec.errors import UsageError
from autoqec.system import sandbox
from autoqec.system.process import child
from autoqec.system.process.child import Limits, Result
from autoqec.system.sandbox import SandboxBackend, SandboxPolicy, bubblewrap
from tests.suites.sandbox_attacks import ATTACKS

KEY = "sk-very-secret"
TMP_MB = 8


class World:
    """Resources that must stay out of reach, and whether an attack reached them."""

    def __init__(self, root: Path) -> None:
        self.outside, self.inside = root / "outside", root / "inside"
        self.outside.mkdir()
        self.inside.mkdir()
        self.secret, self.readable = self.outside / "secret", root / "readable"
        self.secret.write_text("secret")
        self.readable.write_text("readable")
        self.reached: list[str] = []
        self.tcp = self._listen(socket.socket(), ("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.udp.setblocking(False)
        self.unix = self._listen(socket.socket(socket.AF_UNIX), str(root / "s"))
        self.abstract = f"autoqec-test-{os.getpid()}-{root.name}"
        self.victim = subprocess.Popen(["sleep", "600"], env=os.environ | {"ANTHROPIC_API_KEY": KEY})
        self.named = self._listen(socket.socket(socket.AF_UNIX), "\0" + self.abstract)

    def _listen(self, listener: socket.socket, address: Any) -> socket.socket:
        listener.bind(address)
        listener.listen()
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        try:
            while True:
                listener.accept()
                self.reached.append("a listener")
        except OSError:
            return

    def close(self) -> None:
        for socket_ in (self.tcp, self.unix, self.named, self.udp):
            socket_.close()
        self.victim.kill()
        self.victim.wait()

    def facts(self) -> dict[str, Any]:
        return {
            "secret": str(self.secret),
            "outside": str(self.outside),
            "readable": str(self.readable),
            "tcp": self.tcp.getsockname(),
            "udp": self.udp.getsockname(),
            "unix": str(self.outside.parent / "s"),
            "abstract": self.abstract,
            "key": KEY,
            "victim": self.victim.pid,
            "tmp": TMP_MB * 1_000_000,
        }

    def breaches(self) -> list[str]:
        """Return what an attack gained."""
        found = list(self.reached)
        if (self.inside / "won").exists():
            found.append("the attack reported success")
        if not self.secret.exists() or self.secret.read_text() != "secret" or len(os.listdir(self.outside)) != 1:
            found.append("outside has changed")
        if self.readable.read_text() != "readable":
            found.append("a readable file has changed")
        try:
            self.udp.recv(10)
        except BlockingIOError:
            return found
        return [*found, "a datagram arrived"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    world = World(tmp_path)
    yield world
    world.close()


def run(code: str, sandbox_backend: SandboxBackend, policy: SandboxPolicy, log: Path, *, seconds: float = 60) -> Result:
    wrapped = sandbox.wrap([sys.executable, "-c", code], policy, sandbox_backend=sandbox_backend)
    assert wrapped.sandbox_backend == sandbox_backend
    return child.run(wrapped.argv, cwd="/", env=wrapped.env, limits=Limits(seconds, memory_gb=4), stdout=log)


def source(attack: str, world: World) -> str:
    return f"import json\nworld = json.loads({json.dumps(world.facts())!r})\n{ATTACKS[attack]}"


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda name: name.replace(" ", "-"))
def test_attacks_gain_nothing(attack: str, sandbox_backend: SandboxBackend, world: World, tmp_path: Path) -> None:
    code = f"open('ran', 'w').close()\n{source(attack, world)}"
    policy = SandboxPolicy(read_only=(world.readable,), writable=(world.inside,), tmp_mb=TMP_MB)
    run(code, sandbox_backend, policy, tmp_path / "log")
    assert (world.inside / "ran").exists(), (tmp_path / "log").read_text()
    assert world.breaches() == [], (tmp_path / "log").read_text()


def test_interpreter_behind_links_elsewhere_starts(
    sandbox_backend: SandboxBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment whose `python` is a link into a directory of links, as version managers make it."""
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions" / "python3").symlink_to(sys.executable)
    (tmp_path / "python").symlink_to("versions/python3")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    log = tmp_path / "log"
    run("print('started')", sandbox_backend, SandboxPolicy(tmp_mb=TMP_MB), log)
    assert log.read_text() == "started\n"


@pytest.mark.parametrize(
    "attack", ["read a secret file", "write outside", "connect over TCP", "send over UDP", "see another's environment"]
)
def test_attacks_succeed_without_a_sandbox(attack: str, world: World, tmp_path: Path) -> None:
    """Without a sandbox they succeed, so that their failure above is meaningful."""
    wrapped = sandbox.wrap(
        [sys.executable, "-c", source(attack, world)], SandboxPolicy(writable=(world.inside,)), sandbox_backend="none"
    )
    child.run(wrapped.argv, cwd=world.inside, env=wrapped.env, limits=Limits(60), stdout=tmp_path / "log")
    assert world.breaches() != []


def test_listed_paths_can_be_read_and_written(sandbox_backend: SandboxBackend, world: World, tmp_path: Path) -> None:
    code = f"""
import os, tempfile
assert open({str(world.readable)!r}).read() == "readable"
os.makedirs("deep/er")
open("deep/er/a", "w").write("x")
os.rename("deep/er/a", "b")
open("b", "a").write("y")
os.remove("b")
open("kept", "w").write(os.getcwd())
with tempfile.NamedTemporaryFile() as out:
    out.write(b"x")
open("/dev/null", "w").write("x")
assert len(os.urandom(8)) == 8
"""
    policy = SandboxPolicy(read_only=(world.readable,), writable=(world.inside,))
    assert run(code, sandbox_backend, policy, tmp_path / "log").returncode == 0, (tmp_path / "log").read_text()
    assert (world.inside / "kept").read_text() == str(world.inside)
    assert os.listdir(world.inside) in (["kept", "deep"], ["deep", "kept"])


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="/dev/shm is not writable; install: mount a tmpfs there")
def test_workspace_on_tmpfs_is_readable_and_its_sibling_is_not(sandbox_backend: SandboxBackend, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        given, inside, other = (Path(memory, name) for name in ("given", "inside", "other"))
        given.write_text("given")
        inside.mkdir()
        other.write_text("other")
        code = f"""
import os
assert open({str(given)!r}).read() == "given"
open("kept", "w").close()
try: open({str(other)!r})
except OSError: raise SystemExit(0)
raise SystemExit("the neighbour is open")
"""
        policy = SandboxPolicy(read_only=(given,), writable=(inside,))
        assert run(code, sandbox_backend, policy, tmp_path / "log").returncode == 0, (tmp_path / "log").read_text()
        assert os.listdir(inside) == ["kept"]


def test_nothing_is_writable_when_nothing_is_listed(
    sandbox_backend: SandboxBackend, world: World, tmp_path: Path
) -> None:
    code = """
import os
for place in (".", "/", "/dev", "/proc/self", "/usr", "/etc"):
    try: open(os.path.join(place, "planted"), "w")
    except OSError: continue
    raise SystemExit(place)
"""
    policy = SandboxPolicy(read_only=(world.inside,), cwd=world.inside)
    assert run(code, sandbox_backend, policy, tmp_path / "log").returncode == 0, (tmp_path / "log").read_text()


SCRATCH_NAMES = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR")


def test_only_scratch_is_writable(sandbox_backend: SandboxBackend, tmp_path: Path) -> None:
    scratch, artifact = tmp_path / "scratch", tmp_path / "artifact"
    for directory in (scratch, artifact):
        directory.mkdir()
    code = f"""
import os, pathlib, tempfile
for name in {SCRATCH_NAMES!r}:
    place = pathlib.Path(os.environ[name])
    place.mkdir(parents=True, exist_ok=True)
    (place / "file").write_text(name)
with tempfile.NamedTemporaryFile() as out:
    assert out.name.startswith(os.environ["TMPDIR"])
try: open("planted", "w")
except OSError: raise SystemExit(0)
raise SystemExit("the artifact is writable")
"""
    policy = SandboxPolicy(read_only=(artifact,), scratch=scratch, cwd=artifact)
    assert run(code, sandbox_backend, policy, tmp_path / "log").returncode == 0, (tmp_path / "log").read_text()
    assert not os.listdir(artifact)


def test_scratch_of_another_process_is_not_accessible(sandbox_backend: SandboxBackend, tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for directory in (own, other):
        directory.mkdir()
    (other / "note").write_text("note")
    code = f"""
import os
for attempt in (lambda: open({str(other / "note")!r}), lambda: os.listdir({str(other)!r}),
                lambda: os.listdir({str(tmp_path)!r}), lambda: open({str(other / "more")!r}, "w")):
    try: found = attempt()
    except OSError: continue
    assert isinstance(found, list) and not {{"note", "other"}} & set(found), found
"""
    assert run(code, sandbox_backend, SandboxPolicy(scratch=own), tmp_path / "log").returncode == 0, (
        tmp_path / "log"
    ).read_text()
    assert os.listdir(other) == ["note"]


def test_process_can_confine_itself(sandbox_backend: SandboxBackend, world: World, tmp_path: Path) -> None:
    code = "import os, resource; resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99)); os.sched_setaffinity(0, {0})"
    code += "; assert resource.getrlimit(resource.RLIMIT_NOFILE) == (99, 99)"
    result = run(code, sandbox_backend, SandboxPolicy(writable=(world.inside,)), tmp_path / "log")
    assert result.returncode == 0, (tmp_path / "log").read_text()


def test_torch_trains_and_the_package_is_importable_inside(
    sandbox_backend: SandboxBackend, world: World, tmp_path: Path
) -> None:
    code = """
import autoqec.contracts.env, stim, pymatching, torch
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam(net.parameters())
for _ in range(3):
    optimizer.zero_grad()
    net(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
torch.save(net.state_dict(), "net.pt")
"""
    policy = SandboxPolicy(writable=(world.inside,))
    assert run(code, sandbox_backend, policy, tmp_path / "log", seconds=120).returncode == 0, (
        tmp_path / "log"
    ).read_text()
    assert (world.inside / "net.pt").stat().st_size > 0


def test_limits_apply_inside_and_no_process_survives(
    sandbox_backend: SandboxBackend, world: World, tmp_path: Path
) -> None:
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        open("alive", "w").write(str(time.monotonic()))
        time.sleep(0.01)
time.sleep(600)
"""
    result = run(code, sandbox_backend, SandboxPolicy(writable=(world.inside,)), tmp_path / "log", seconds=1.5)
    assert result.limit_broken is not None and result.limit_broken.startswith("wall clock")
    last = (world.inside / "alive").read_text()
    threading.Event().wait(0.2)
    assert (world.inside / "alive").read_text() == last


def test_memory_inside_is_counted(sandbox_backend: SandboxBackend, world: World, tmp_path: Path) -> None:
    code = "held = bytearray(b'x') * 400_000_000\nimport time\ntime.sleep(600)"
    wrapped = sandbox.wrap(
        [sys.executable, "-c", code], SandboxPolicy(writable=(world.inside,)), sandbox_backend=sandbox_backend
    )
    limits = Limits(60, memory_gb=0.2)
    result = child.run(wrapped.argv, cwd="/", env=wrapped.env, limits=limits, stdout=tmp_path / "log")
    assert result.limit_broken is not None and result.limit_broken.startswith("memory")


def test_exit_status_and_output_are_returned(sandbox_backend: SandboxBackend, world: World, tmp_path: Path) -> None:
    code = "print('hi'); raise SystemExit(9)"
    assert run(code, sandbox_backend, SandboxPolicy(writable=(world.inside,)), tmp_path / "log").returncode == 9
    assert (tmp_path / "log").read_text() == "hi\n"


LOOPBACK = """
import socket, sys
mine = socket.create_server(("127.0.0.1", 0))
socket.create_connection(mine.getsockname(), 5).sendall(b"x")
assert mine.accept()[0].recv(1) == b"x"
for attack in (lambda: socket.create_connection(tuple(OUTSIDE), 2), lambda: socket.socket(socket.AF_UNIX),
               lambda: socket.socket(40, socket.SOCK_STREAM)):
    try:
        attack()
    except OSError:
        continue
    sys.exit("the sandbox is open")
"""


def test_loopback_connects_processes_inside_only(sandbox_backend: SandboxBackend, world: World, tmp_path: Path) -> None:
    code = LOOPBACK.replace("OUTSIDE", repr(world.tcp.getsockname()))
    policy = SandboxPolicy(writable=(world.inside,), loopback=True)
    returncode = run(code, sandbox_backend, policy, tmp_path / "log").returncode
    if sandbox_backend == "bubblewrap":
        assert returncode == 0, (tmp_path / "log").read_text()
    else:
        assert "Operation not permitted" in (tmp_path / "log").read_text(), "no namespace of its own: no socket"
    assert not world.reached


def test_network_is_available_only_on_request(sandbox_backend: SandboxBackend, world: World, tmp_path: Path) -> None:
    code = f"import socket; socket.create_connection({world.tcp.getsockname()!r}, 5)"
    assert (
        run(code, sandbox_backend, SandboxPolicy(writable=(world.inside,), network=True), tmp_path / "log").returncode
        == 0
    )
    assert run(code, sandbox_backend, SandboxPolicy(writable=(world.inside,)), tmp_path / "log").returncode != 0


def test_probe_names_the_strongest_available_backend() -> None:
    assert sandbox.probe() == next(
        sandbox_backend for sandbox_backend in sandbox.SANDBOX_BACKENDS if sandbox.is_available(sandbox_backend)
    )


def fake_bwrap(directory: Path, script: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / "bwrap"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


PASS_THROUGH = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'


def versioned(number: str, otherwise: str = "exit 0") -> str:
    return f'if [ "$1" = --version ]; then echo "bubblewrap {number}"; exit 0; fi; {otherwise}'


@pytest.mark.parametrize("script", [PASS_THROUGH, "exit 1"])
def test_backend_that_does_not_start_is_unavailable(
    script: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(sandbox.CHOICE, raising=False)
    fake = fake_bwrap(tmp_path, script)
    monkeypatch.setattr(bubblewrap, "bwrap", lambda: fake)
    assert sandbox.unavailable_reason.__wrapped__("bubblewrap")


def test_missing_backend_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sandbox.CHOICE, raising=False)
    monkeypatch.setattr(bubblewrap, "bwrap", lambda: None)
    assert sandbox.unavailable_reason.__wrapped__("bubblewrap") == "bwrap is not installed"
    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    assert "needs Linux, this is darwin" in str(sandbox.unavailable_reason.__wrapped__("landlock"))


@pytest.mark.parametrize(("choice", "excluded"), [("landlock", "bubblewrap"), ("bubblewrap", "landlock")])
def test_backend_can_be_chosen(choice: str, excluded: SandboxBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sandbox.CHOICE, choice)
    assert sandbox.unavailable_reason.__wrapped__(excluded) == f"AUTOQEC_SANDBOX={choice} excludes it"
    monkeypatch.setattr(sandbox, "unavailable_reason", sandbox.unavailable_reason.__wrapped__)
    assert sandbox.probe.__wrapped__() in (choice, "none")


def test_unknown_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sandbox.CHOICE, "docker")
    with pytest.raises(UsageError, match="unknown sandbox backend 'docker'"):
        sandbox.unavailable_reason.__wrapped__("landlock")


@pytest.mark.parametrize(
    ("system", "packaged", "used"),
    [
        (versioned("0.12.1"), versioned("0.11.0"), "system"),
        (versioned("0.9.0"), versioned("0.11.0"), "packaged"),
        (versioned("0.11.0"), versioned("0.11.0"), "packaged"),
        (versioned("0.8.0"), versioned("0.11.0", "exit 1"), "system"),
        (versioned("0.8.0", "exit 1"), versioned("0.11.0", "exit 1"), "packaged"),
        ("exit 1", versioned("0.11.0"), "packaged"),
        (versioned("0.8.0", "exit 1"), None, "system"),
        (None, None, None),
    ],
)
def test_newest_bwrap_that_starts_is_used(
    system: str | None, packaged: str | None, used: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paths = {"system": system, "packaged": packaged}
    fakes = {name: script and fake_bwrap(tmp_path / name, script) for name, script in paths.items()}
    for name in paths:
        monkeypatch.setattr(bubblewrap, name, lambda name=name: fakes[name])
    assert bubblewrap.bwrap.__wrapped__() == fakes.get(str(used))


def test_workspace_inside_the_python_installation_is_not_readable(
    sandbox_backend: SandboxBackend, world: World, tmp_path: Path
) -> None:
    """The workspace is a virtual environment or lies below /usr, which every sandbox backend makes readable."""
    policy = SandboxPolicy(writable=(world.inside,), hidden_paths=(world.outside, world.outside / "deep", world.secret))
    with pytest.MonkeyPatch.context() as patch:
        python_s = (*sandbox.readable(), world.outside.parent)
        patch.setattr(sandbox, "readable", lambda: python_s)
        look = f"import os; print(os.listdir({str(world.outside)!r})); open({str(world.secret)!r})"
        open_policy = SandboxPolicy(writable=(world.inside,))
        assert (
            run(look, sandbox_backend, open_policy, tmp_path / "log").returncode == 0
        )  # readable without `hidden_paths`
        if sandbox_backend == "landlock":
            with pytest.raises(UsageError, match=f"{world.outside} lies among"):
                sandbox.wrap(["true"], policy, sandbox_backend=sandbox_backend)
            return
        for attack in ("read a secret file", "list the run directory", "write outside", "read it through a hard link"):
            run(source(attack, world), sandbox_backend, policy, tmp_path / "log")
            assert world.breaches() == ["the attack reported success"] * (attack == "list the run directory"), attack
            (world.inside / "won").unlink(missing_ok=True)  # an empty directory may be listed
        gone = f"import os; assert os.listdir({str(world.outside)!r}) == []; open({str(world.readable)!r})"
        assert run(gone, sandbox_backend, policy, tmp_path / "log").returncode == 0, (tmp_path / "log").read_text()
