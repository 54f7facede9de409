"""A Chromium driven over the DevTools protocol, as little of it as the tests of the page need."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 300.0
"""Seconds; a loaded machine is slow, and nothing waits longer than it has to."""


def executable() -> str | None:
    return os.environ.get("OVERSMOOTH_CHROMIUM") or next((p for n in NAMES if (p := shutil.which(n))), None)


READY = "[...document.querySelectorAll('.chart[id]')].every((chart) => chart.dataset.ready)"
MARKS = [
    pytest.mark.browser,
    pytest.mark.skipif(executable() is None, reason="no Chromium; set OVERSMOOTH_CHROMIUM to one"),
]


def needed(test: Any) -> Any:
    """A test that opens pages."""
    for mark in MARKS:
        test = mark(test)
    return test


class Browser:
    """One page at a time. `events` holds what the browser said since the last `open`."""

    def __init__(self, address: str):
        # no Origin header: Chromium refuses origins it was not told of
        self._socket = websocket.create_connection(address, timeout=PATIENCE, suppress_origin=True)
        self._last = 0
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    _session = None

    def call(self, method: str, **parameters: Any) -> Any:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == self._last:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """The first true value of an expression."""
        return until(lambda: self.run(expression), expression)

    def open(self, path: Path, width: int = 1200, height: int = 900, dark: bool = False, touch: bool = False) -> None:
        self.size(width, height, touch)
        self.dark(dark)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait(f"location.href === {json.dumps(path.as_uri())} && document.readyState === 'complete'")

    def size(self, width: int, height: int, touch: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)

    def dark(self, on: bool) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """An arrow key, as a keyboard sends it."""
        code = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}[key]
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def complaints(self) -> list[str]:
        """Errors and exceptions of the page so far."""
        self.run("0")  # what was said before this answer has been read
        found = []
        for event in self.events:
            inside = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(inside["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and inside["type"] in ("error", "warning", "assert"):
                found.append(str(inside["args"]))
            elif event["method"] == "Log.entryAdded" and inside["entry"]["level"] in ("error", "warning"):
                found.append(str(inside["entry"]))
        return found

    def requests(self) -> list[str]:
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def close(self) -> None:
        self._socket.close()


def until(what: Callable[[], Any], name: str) -> Any:
    end = time.monotonic() + PATIENCE
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < end, f"waited {PATIENCE} seconds in vain for {name}"
        time.sleep(0.02)


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with its own profile in folder, ended with the block."""
    program = executable()
    assert program, "no Chromium"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options += [
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--user-data-dir={folder}",
        "--remote-debugging-port=0",
    ]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen([program, *options, "about:blank"], stdout=log, stderr=log)
    port = folder / "DevToolsActivePort"
    try:
        until(lambda: port.exists() and len(port.read_text().split()) == 2, "Chromium to start")
        number, path = port.read_text().split()
        page = Browser(f"ws://127.0.0.1:{number}{path}")
        try:
            yield page
        finally:
            page.close()
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
