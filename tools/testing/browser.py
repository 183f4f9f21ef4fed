"""Drives Debian's chromium, without a window, by the DevTools protocol over a pair of pipes.

    with browser.Browser() as chromium:
        page = chromium.page(width=390, height=844, dark=True)
        page.open("file:///...")
        page.press("Tab")
        page.value("document.activeElement.textContent")

The protocol: messages are JSON and end with a zero byte; chromium reads from file descriptor 3 and
writes to 4.
"""
import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

SECONDS = 60    # limit for an answer, on a busy machine
# Without a sandbox, because root cannot use it; the browser opens only our own pages.
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
           "--no-first-run", "--disable-background-networking", "--hide-scrollbars",
           "--remote-debugging-pipe")
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37,
        "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
TEXTS = {"Enter": "\r"}
SHIFT = 8


def is_there():
    return shutil.which("chromium") is not None


class Browser:
    def __enter__(self):
        self.profile = tempfile.mkdtemp(prefix="kablate-chromium-")
        read, self.writer = os.pipe()
        self.reader, write = os.pipe()
        words = " ".join(("exec chromium", *OPTIONS, f"--user-data-dir='{self.profile}'"))
        self.process = subprocess.Popen(["bash", "-c", f"{words} 3<&{read} 4>&{write}"],
                                        pass_fds=(read, write), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(read)
        os.close(write)
        self.numbers, self.buffer, self.events = itertools.count(1), b"", []
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(SECONDS)
        os.close(self.reader)
        os.close(self.writer)
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self, deadline):
        """The next message."""
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.reader], [], [], left)[0]:
                raise TimeoutError("chromium does not answer")
            more = os.read(self.reader, 1 << 20)
            if not more:
                raise EOFError("chromium has ended")
            self.buffer += more
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, session=None, **parameters):
        """The answer to a command.  Keeps events that arrive before it."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self.receive(deadline)
            if answer.get("id") != number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    def page(self, **looks):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session, target, **looks)


class Page:
    def __init__(self, browser, session, target, width=1400, height=1000, dark=False, script=True):
        self.browser, self.session, self.target, self.script = browser, session, target, script
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)

    def open(self, address):
        self.call("Page.navigate", url=address)
        self.wait_for_load()

    def wait_for_load(self):
        deadline = time.monotonic() + SECONDS
        while not self.told("Page.loadEventFired"):
            self.browser.events.append(self.browser.receive(deadline))
        self.browser.events = [event for event in self.browser.events
                               if event.get("method") != "Page.loadEventFired"]
        if self.script:
            self.settle()

    def settle(self):
        """Waits until everything is drawn."""
        self.value("new Promise(done => requestAnimationFrame(() => "
                   "requestAnimationFrame(() => done(0))))")

    def told(self, method):
        """The parameters of the page's events of this name."""
        return [event["params"] for event in self.browser.events
                if event.get("method") == method and event.get("sessionId") == self.session]

    def faults(self):
        """Errors that the browser reported."""
        return [e["exceptionDetails"] for e in self.told("Runtime.exceptionThrown")] + \
            [e["entry"]["text"] for e in self.told("Log.entryAdded")
             if e["entry"]["level"] == "error"]

    def requests(self):
        return [event["request"]["url"] for event in self.told("Network.requestWillBeSent")]

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key, shift=False):
        code = KEYS.get(key, ord(key[0].upper()))
        words = TEXTS.get(key, key if len(key) == 1 else "")
        for kind in ("keyDown" if words else "rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                      modifiers=SHIFT if shift else 0,
                      **({"text": words} if kind == "keyDown" else {}))

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def hover(self, x, y):
        self.mouse("mouseMoved", x, y)

    def drag(self, start, end):
        self.hover(*start)
        self.mouse("mousePressed", *start, button="left", clickCount=1)
        middle = ((a + b) / 2 for a, b in zip(start, end))
        self.mouse("mouseMoved", *middle, button="left", buttons=1)
        self.mouse("mouseMoved", *end, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", clickCount=1)

    def click(self, x, y):
        self.drag((x, y), (x, y))

    def tap(self, x, y):
        """With a finger."""
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def keep_downloads(self, directory):
        self.browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(directory))

    def reload(self):
        self.call("Page.reload")
        self.wait_for_load()

    def screenshot(self, path, whole=False):
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole,
                           **({"clip": self.size()} if whole else {}))
        with open(path, "wb") as file:
            file.write(base64.b64decode(answer["data"]))

    def size(self):
        found = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": found["width"], "height": found["height"], "scale": 1}
