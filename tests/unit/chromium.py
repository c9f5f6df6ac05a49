"""A headless Chromium, spoken to over its debugging pipe, for tests that look at a page as a person would."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

TIMEOUT_S = 50
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """Return the browser's path, ``None`` where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in a browser of its own; ``problems`` holds every error that a console would show."""

    def __init__(self, folder: Path) -> None:
        read_there, write_here = os.pipe()
        read_here, write_there = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
        words = [find_chromium(), *options, f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
        # The browser reads from 3 and writes to 4; a shell puts the pipes there.
        line = f'exec "$@" 3<&{read_there} 4>&{write_there}'
        self._process = subprocess.Popen(
            ["bash", "-c", line, "bash", *words],
            pass_fds=(read_there, write_there),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_there)
        os.close(write_there)
        self._read, self._write, self._rest, self._number = read_here, write_here, b"", 0
        self._session: str | None = None
        self.problems: list[str] = []
        self._loaded = False
        self._until = time.monotonic() + TIMEOUT_S
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)  # at the end of its orders the browser leaves, and takes its children along
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        os.close(self._read)

    def show(self, page: Path, *, width: int, scheme: str = "light", is_phone: bool = False) -> None:
        """Load a file at a width in pixels, in ``light`` or ``dark``."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=is_phone)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._loaded = False
        self._call("Page.navigate", url=page.resolve().as_uri())
        while not self._loaded:
            self._take(self._receive())

    def evaluate(self, expression: str) -> Any:
        """Return what a JavaScript expression comes to on the page."""
        return self._call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self) -> bytes:
        """Return the whole page as PNG."""
        told = self._call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        return base64.b64decode(told["data"])

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self._take(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(self._until - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            data = os.read(self._read, 1 << 16)
            assert data, "the browser has ended"
            self._rest += data
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def _take(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("warning", "error"):
            self.problems.append(params["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"].get("text")))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("warning", "error"):
            self.problems.append(str(params["args"]))
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:")):
            self.problems.append(f"asked the network for {params['request']['url']}")
