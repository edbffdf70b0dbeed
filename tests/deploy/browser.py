"""Headless Chromium, spoken to over a pipe (its DevTools protocol), as a phone or a desktop.

    with browser.Browser() as chromium:
        page = chromium.page("http://127.0.0.1:9090/", width=360, height=740, mobile=True)
        page.value("document.title")
        page.screenshot("phone.png")
"""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

import real_fleet


def find():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="foreshard-chromium-")
        hear, say = os.pipe(), os.pipe()
        self.hear, self.say = hear[0], say[1]
        flags = ["--headless", "--remote-debugging-pipe", f"--user-data-dir={self.folder.name}", "--no-first-run", "--disable-gpu",
                 "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
                 "--force-color-profile=srgb", "--font-render-hinting=none"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # it has none for root
        # It reads its file 3 and writes its file 4.
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{say[0]} 4>&{hear[1]}', "bash", find(), *flags, "about:blank"],
            pass_fds=(say[0], hear[1]), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(say[0])
        os.close(hear[1])
        self.number, self.rest, self.events = 0, b"", []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.say)
        real_fleet.end([self.process])
        os.close(self.hear)
        # Its last child may still be writing.
        shutil.rmtree(self.folder.name, ignore_errors=True)
        self.folder.cleanup()

    def message(self, within):
        finish = time.monotonic() + within
        while b"\0" not in self.rest:
            if not select.select([self.hear], [], [], max(0, finish - time.monotonic()))[0]:
                return None
            part = os.read(self.hear, 1 << 16)
            if not part:
                raise AssertionError("Chromium has ended")
            self.rest += part
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def call(self, method, session=None, within=60, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if session:
            request["sessionId"] = session
        os.write(self.say, json.dumps(request).encode() + b"\0")
        finish = time.monotonic() + within
        while time.monotonic() < finish:
            message = self.message(finish - time.monotonic())
            if message is None:
                break
            if message.get("id") == self.number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)
        raise AssertionError(f"{method}: no answer within {within} s")

    def page(self, url, width=1280, height=900, mobile=False, dark=False, still=False):
        return Page(self, url, width, height, mobile, dark, still)


class Page:
    def __init__(self, browser, url, width, height, mobile, dark, still):
        self.browser, self.width, self.height = browser, width, height
        self.mobile = mobile
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(height)
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)  # several pages are in front at once
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"}])
        self.call("Page.navigate", url=url)

    def call(self, method, **parameters):
        return self.browser.call(method, session=self.session, **parameters)

    def resize(self, height, width=None):
        self.width = width or self.width
        self.call("Emulation.setDeviceMetricsOverride", width=self.width, height=height, deviceScaleFactor=2 if self.mobile else 1,
                  mobile=self.mobile)

    def value(self, expression):
        """What the JavaScript gives, as JSON holds it; promises are waited for."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise AssertionError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, expression, seconds=30):
        return real_fleet.wait_until(lambda: self.value(expression), f"{expression} in the page", seconds)

    def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                      **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))

    def complaints(self):
        """Errors that the page has put into its console, and addresses of other hosts that it asked."""
        self.value("0")  # what was said before its answer is here
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                found.append(event["params"]["exceptionDetails"].get("exception", {}).get("description", "exception"))
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"] + " " + event["params"]["entry"].get("url", ""))
        return found

    def asked(self):
        return {event["params"]["request"]["url"] for event in self.browser.events
                if event.get("sessionId") == self.session and event["method"] == "Network.requestWillBeSent"}

    def screenshot(self, path):
        """All of the page, from its top to its end, in a window that is as high."""
        self.resize(int(self.call("Page.getLayoutMetrics")["cssContentSize"]["height"]))
        self.value("new Promise((done) => setTimeout(done, 700))")  # charts are drawn anew
        shot = self.call("Page.captureScreenshot", format="png")
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))
        self.resize(self.height)

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
