"""A headless Chromium, driven through a pipe by its own protocol, so that nothing but the browser itself is needed."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ANSWER_S = 60.0
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str | None:
    """The browser of this machine, or the one that REPLAYD_CHROMIUM names."""
    return os.environ.get("REPLAYD_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def _moved_up(descriptor: int) -> int:
    """The same file at a descriptor of two digits."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


class Browser:
    """One page of one browser. What the page writes to its console, and what it throws, stands in `complaints`."""

    def __init__(self, directory: Path) -> None:
        command = executable()
        assert command is not None
        commands_read, self._commands = os.pipe()
        self._answers, answers_write = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4: none of ours may be moved there.
        commands_read, answers_write = _moved_up(commands_read), _moved_up(answers_write)
        shell = f'exec "$@" 3<&{commands_read} 4>&{answers_write}'
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--remote-debugging-pipe",
            f"--user-data-dir={directory / 'browser'}",
        ]
        with (directory / "browser.txt").open("wb") as output:
            self._process = subprocess.Popen(
                ["bash", "-c", shell, "bash", command, *options],
                pass_fds=(commands_read, answers_write),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        os.close(commands_read)
        os.close(answers_write)
        self._ids = itertools.count(1)
        self._unread = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requested: set[str] = set()
        """Addresses that the page asked for."""
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        id = next(self._ids)
        message = {"id": id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = self._next(deadline)
            if answer.get("id") == id:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def show(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """The size of the window, and which colours its user prefers."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def go(self, address: str) -> None:
        self.command("Page.navigate", url=address)

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, describe: Callable[[], object] = lambda: "") -> None:
        """Wait until an expression is true; the page's own clock drives it."""
        deadline = time.monotonic() + ANSWER_S
        while not self.ask(f"new Promise(r => setTimeout(r, 50)).then(() => Boolean({expression}))"):
            assert time.monotonic() < deadline, f"never true: {expression}\n{describe()}\n{self.complaints}"

    def screenshot(self, path: Path) -> None:
        """All of the page, not only what is in the window."""
        shot = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        os.close(self._commands)
        os.close(self._answers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            more = os.read(self._answers, 1 << 20)
            assert more, "the browser has ended"
            self._unread += more
        message, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(parameters["args"]))
            case "Log.entryAdded":
                self.complaints.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requested.add(parameters["request"]["url"])
