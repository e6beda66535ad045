"""Chromium without a window, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from itertools import count
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import connect

FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
--disable-background-networking --disable-component-update --hide-scrollbars
--remote-debugging-port=0"""
_START_S = 60.0


def missing() -> str | None:
    """Why there is no browser here, and what to do about it; None if there is one."""
    if shutil.which("chromium") is None:
        return "no chromium; as root: apt-get install -y --no-install-recommends chromium"
    return None


class Browser:
    """One browser with one page; a context manager.

    Args:
        directory: an empty one for its profile.
        size: of the window, in pixels.
    """

    def __init__(self, directory: Path, size: tuple[int, int] = (1100, 900)) -> None:
        self._profile = directory
        self._size = size
        self._ids = count(1)

    def __enter__(self) -> Self:
        words = [f"--user-data-dir={self._profile}", "--window-size={},{}".format(*self._size)]
        command = ["chromium", *FLAGS.split(), *words, "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, **quiet)
        try:
            port, path = self._address()
            self._socket = connect(f"ws://127.0.0.1:{port}{path}", max_size=None)
            targets = self._call("Target.getTargets")["targetInfos"]
            page = next(t["targetId"] for t in targets if t["type"] == "page")
            attached = self._call("Target.attachToTarget", targetId=page, flatten=True)
            self._session = attached["sessionId"]
        except BaseException:
            self.__exit__()
            raise
        return self

    _session: str | None = None

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def open(self, address: str) -> None:
        """Go there, and wait until all of the page is there."""
        self._call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, script: str) -> Any:
        """The value of an expression on the page; a promise is waited for."""
        done = self._call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in done:
            raise AssertionError(done["exceptionDetails"])
        return done["result"].get("value")

    def wait(self, condition: str, timeout: float = 30.0) -> None:
        """Until an expression is true."""
        deadline = time.monotonic() + timeout
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"never: {condition}"
            time.sleep(0.05)

    def prefer(self, scheme: str) -> None:
        """`light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", features=[feature])

    def resize(self, width: int, height: int) -> None:
        """Make the page this many pixels large."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def picture(self, path: Path) -> None:
        """The visible part of the page, as PNG."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _address(self) -> tuple[str, str]:
        """Port and path, which the browser leaves in its profile when it listens."""
        file = self._profile / "DevToolsActivePort"
        deadline = time.monotonic() + _START_S
        while not (file.exists() and len(file.read_text().splitlines()) == 2):
            assert self._process.poll() is None, "the browser has ended"
            assert time.monotonic() < deadline, "the browser does not listen"
            time.sleep(0.05)
        port, path = file.read_text().splitlines()
        return port, path
