"""Headless Chromium over its debugging pipe, without a driver or package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

# The browser expects the pipe at descriptors 3 and 4.
_MOVE = """
import fcntl, os, sys
high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
os.dup2(high[0], 3), os.dup2(high[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page. `requests`: every URL it requested; `complaints`: console errors, exceptions, refused loads."""

    def __init__(self, profile: Path) -> None:
        program = find_browser()
        assert program is not None
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        os.set_inheritable(to_read, True)
        os.set_inheritable(to_write, True)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MOVE, str(to_read), str(to_write), program, "--headless=new", "--no-sandbox"]
            + ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-gpu", "--no-first-run"]
            + ["--disable-dev-shm-usage", "--hide-scrollbars", "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile)},
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number = b"", 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def __enter__(self) -> Self:
        return self

    def fresh(self) -> None:
        """Open a new page without state of earlier ones."""
        self._session = None
        context = self.call("Target.createBrowserContext")["browserContextId"]
        page = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")
        self.settle(0.1)
        self.requests.clear()
        self.complaints.clear()

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            message = self._next(30)
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]

    def settle(self, seconds: float = 0.2) -> None:
        """Process events of the page for a while."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self._read], [], [], left)[0]:
                self._next(left)

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        for _ in range(100):
            self.settle(0.1)
            if self.js("document.readyState") == "complete" and self.js("location.href") != "about:blank":
                return
        raise AssertionError(f"{address} did not load")

    def js(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        message = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in message, message
        return message["result"].get("value")

    def look(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Set the window size and the preferred theme."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def click(self, selector: str) -> None:
        """Click the centre of the first element that matches."""
        find = f"const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
        box = "const r = e.getBoundingClientRect()"
        middle = "[r.x + Math.min(r.width, innerWidth) / 2, r.y + r.height / 2]"
        centre = self.js(f"(() => {{ {find} {box}; return {middle} }})()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=centre[0], y=centre[1], button="left", clickCount=1)
        self.settle()

    def press(self, key: str) -> None:
        text = {"Enter": "\r"}.get(key)
        more = {"text": text} if text else {}
        codes = {"Enter": 13, "Tab": 9}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **more)
        self.settle()

    def picture(self, path: Path, *, whole: bool = False) -> None:
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def _next(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], seconds)[0], "the browser is silent"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params["args"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(params["entry"])[:500])
