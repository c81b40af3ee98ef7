"""Real Chromium, headless, through chromedriver's W3C protocol; no package beside the operating system's."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
CHROMEDRIVER = shutil.which("chromedriver")
MISSING = None if CHROMIUM and CHROMEDRIVER else "needs Debian's packages chromium and chromium-driver"

_FLAGS = """
    --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --force-device-scale-factor=1 --hide-scrollbars
"""
_KEYS = {"Right": "\ue014", "Left": "\ue012", "Up": "\ue013", "Down": "\ue015", "Tab": "\ue004", "Enter": "\ue007"}
_KEYS |= {"Shift": "\ue008", "Space": " "}


class Browser:
    """One window; `requests()` and `console()` tell what the page asked for and complained of."""

    def __init__(self, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.profile = tempfile.mkdtemp(prefix="nextpolicy-chromium-")
        self.driver = subprocess.Popen(
            [CHROMEDRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        port = next(line for line in self.driver.stdout if "started successfully on port" in line).split()[-1]
        self.base = f"http://127.0.0.1:{port.rstrip('.')}"
        options = {
            "binary": CHROMIUM,
            "args": [*_FLAGS.split(), f"--user-data-dir={self.profile}", f"--window-size={width},{height}"],
        }
        logs = {"browser": "ALL", "performance": "ALL"}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{session['sessionId']}"
        self.open("about:blank")
        self.requests()  # those of the browser's own first page
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.devtools("Emulation.setEmulatedMedia", features=scheme)
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def devtools(self, command: str, **params: Any) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def open(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str, seconds: float = 15.0) -> Any:
        """Until the script returns something true."""
        until = time.monotonic() + seconds
        while not (value := self.run(script)):
            if time.monotonic() > until:
                raise TimeoutError(f"the page never came to: {script}")
            time.sleep(0.05)
        return value

    def click(self, selector: str, index: int = 0) -> None:
        found = self._call("POST", "/elements", {"using": "css selector", "value": selector})
        element = next(iter(found[index].values()))
        self._call("POST", f"/element/{element}/click", {})

    def press(self, *names: str) -> None:
        """Keys one after another; in `Shift+Up`, the first is held meanwhile."""
        keys = []
        for name in names:
            parts = [_KEYS[part] for part in name.split("+")]
            keys += [{"type": "keyDown", "value": key} for key in parts]
            keys += [{"type": "keyUp", "value": key} for key in reversed(parts)]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": keys}]})

    def hover(self, x: int, y: int) -> None:
        move = {"type": "pointerMove", "duration": 0, "x": int(x), "y": int(y)}
        self._call("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [move]}]})

    def screenshot(self, path: Path, full: bool = False) -> None:
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(shot["data"]))

    def console(self) -> list[str]:
        """Warnings and errors."""
        entries = self._call("POST", "/se/log", {"type": "browser"})
        return [e["message"] for e in entries if e["level"] in ("WARNING", "SEVERE")]

    def requests(self) -> list[str]:
        """Every address the page asked for."""
        entries = self._call("POST", "/se/log", {"type": "performance"})
        messages = (json.loads(e["message"])["message"] for e in entries)
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def close(self) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(timeout=20)
            self.driver.stdout.close()
            shutil.rmtree(self.profile, ignore_errors=True)
