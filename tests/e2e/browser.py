"""A headless Chromium, driven by the WebDriver protocol. It reaches nothing but the loopback."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request

from harness import free_port, wait_for

KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Shift": "\ue008"}
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One window. Use as a context manager; it ends with its driver."""

    def __init__(self, width=1280, height=900):
        self.directory = tempfile.mkdtemp(prefix="sluice-browser-")
        self.size = (width, height)
        self.session = None

    def __enter__(self):
        port = free_port()
        environment = dict(os.environ, HOME=self.directory, TMPDIR=self.directory)
        with open(os.path.join(self.directory, "driver.log"), "wb") as log:
            self.driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdin=subprocess.DEVNULL,
                                           stdout=log, stderr=log, env=environment)
        self.root = f"http://127.0.0.1:{port}"
        try:
            wait_for(self._ready, "chromedriver to be ready")
            self.session = self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            if self.session:
                self._call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _ready(self):
        try:
            with urllib.request.urlopen(f"{self.root}/status", timeout=10) as answer:
                return json.load(answer)["value"]["ready"]
        except (OSError, ValueError):
            return False

    def _start(self):
        arguments = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-default-apps", "--disable-extensions", "--no-default-browser-check",
            # No name but the loopback's is looked up.
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
            f"--window-size={self.size[0]},{self.size[1]}",
            f"--user-data-dir={os.path.join(self.directory, 'profile')}"]
        wanted = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments},
                  "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        self.session = None
        return self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def _call(self, method, path, body=None):
        where = f"{self.root}/session/{self.session}{path}" if self.session else f"{self.root}{path}"
        data = json.dumps(body if body is not None else {}).encode() if method == "POST" else None
        request = urllib.request.Request(where, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()[:2000]}") from None

    def open(self, url):
        self._call("POST", "/url", {"url": url})

    def run(self, script, *args):
        """The value of a function's body."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(args)})

    def devtools(self, command, **parameters):
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def find(self, selector):
        """The element that is shown, or None."""
        return self.run("return [...document.querySelectorAll(arguments[0])].find("
                        "e => e.checkVisibility()) ?? null", selector)

    def text(self, selector="main"):
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def wait(self, selector, seconds=60):
        return wait_for(lambda: self.find(selector), f"{selector} to be shown", seconds)

    def wait_text(self, selector, part, seconds=60):
        def look():
            return part in self.text(selector)
        try:
            wait_for(look, f"{part!r} in {selector}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; it says {self.text(selector)!r}") from None

    def click(self, selector):
        self._call("POST", f"/element/{self.wait(selector)[ELEMENT]}/click")

    def type(self, selector, text):
        self._call("POST", f"/element/{self.wait(selector)[ELEMENT]}/value", {"text": text})

    def press(self, *keys):
        """Presses keys one after the other, as "Tab" or "Enter"."""
        actions = []
        for key in keys:
            value = KEYS.get(key, key)
            actions += [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def focused(self):
        """The name of what has the focus."""
        return self.run("const e = document.activeElement; return e.getAttribute('aria-label') || e.innerText || e.id")

    def resize(self, width, height):
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                      mobile=False)
        # What observes sizes is told so in the next frame.
        self.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def colors(self, scheme):
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path, whole=False):
        shot = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def console(self):
        """What was logged since the last call: errors of scripts, refused resources."""
        return self._call("POST", "/se/log", {"type": "browser"})

    def requests(self):
        """The addresses that were asked for since the last call, by anything in the window."""
        found = []
        for entry in self._call("POST", "/se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
            if message["method"] == "Network.webSocketCreated":
                found.append(message["params"]["url"])
        return found
