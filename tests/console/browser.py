"""A headless Chromium, driven by the DevTools protocol over aiohttp's WebSocket.

Source: https://chromedevtools.github.io/devtools-protocol/. A page remembers what went wrong in it: exceptions,
console errors, refusals of the Content-Security-Policy, and every address that it asked for.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-default-apps",
    "--disable-extensions", "--hide-scrollbars", "--remote-debugging-port=0",
    "--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
)  # fmt: skip
LAPTOP, PHONE = (1366, 800), (390, 844)
_KEYS = {
    "Tab": ("Tab", 9, None), "Enter": ("Enter", 13, "\r"), "Escape": ("Escape", 27, None), " ": ("Space", 32, " "),
    "ArrowDown": ("ArrowDown", 40, None),
}  # fmt: skip
_LEAVING = ("Inspected target navigated or closed", "Execution context was destroyed", "Cannot find context")


class PageLeft(RuntimeError):
    """The page gave way to another one while it was asked."""


class Browser:
    """A running Chromium."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        self._contexts: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            news = json.loads(message.data)
            if "id" in news:
                future = self._answers.pop(news["id"])
                if future.done():
                    continue
                if "error" in news:
                    text = news["error"]["message"]
                    kind = PageLeft if text.startswith(_LEAVING) else RuntimeError
                    future.set_exception(kind(f"Chromium: {text}"))
                else:
                    future.set_result(news["result"])
            elif news.get("sessionId") in self._pages:
                self._pages[news["sessionId"]].heard(news["method"], news["params"])

    async def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        await self._socket.send_json(message)
        async with asyncio.timeout(60):
            return await future

    async def page(self, *, size: tuple[int, int] = LAPTOP, dark: bool = False, context: str | None = None) -> Page:
        """A new tab; with ``context`` it shares that one's cookies, else it has its own."""
        if context is None:
            context = (await self.call("Target.createBrowserContext"))["browserContextId"]
            self._contexts.append(context)
        target = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"], context)
        for domain in ("Page", "Runtime", "Network", "Log", "Audits"):
            await page.call(f"{domain}.enable")
        await page.call(
            "Emulation.setDeviceMetricsOverride",
            width=size[0], height=size[1], deviceScaleFactor=1, mobile=size[0] < 600,
        )  # fmt: skip
        await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await page.call("Emulation.setEmulatedMedia", features=[scheme])
        return page

    async def close(self) -> None:
        """Close every tab, with its cookies and storage."""
        for context in self._contexts:
            await self.call("Target.disposeBrowserContext", browserContextId=context)
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser, self._session, self.context = browser, session, context
        self.faults: list[str] = []
        """Exceptions, console errors, refusals by the Content-Security-Policy."""
        self.asked: list[str] = []
        """Addresses of all requests."""
        self.pending: dict[str, str] = {}
        """Those that are not answered yet, by number."""
        self.failed: list[str] = []
        """Those that got no answer, and why."""

    def heard(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.faults.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled" if params["type"] in {"error", "warning", "assert"}:
                self.faults.append(str([arg.get("value") for arg in params["args"]]))
            case "Log.entryAdded" if params["entry"]["level"] == "error" and params["entry"]["source"] != "network":
                self.faults.append(params["entry"]["text"])
            case "Audits.issueAdded" if params["issue"]["code"] == "ContentSecurityPolicyIssue":
                self.faults.append(json.dumps(params["issue"]["details"]))
            case "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])
                self.pending[params["requestId"]] = params["request"]["url"]
            case "Network.loadingFinished":
                self.pending.pop(params["requestId"], None)
            case "Network.loadingFailed":
                self.failed.append(f"{self.pending.pop(params['requestId'], '?')}: {params['errorText']}")

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._browser.call(method, self._session, **params)

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression is, as JSON; promises are awaited."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    async def until(self, expression: str, *, seconds: float = 60.0) -> Any:
        """The expression's value once it is true, on whatever page the tab has come to by then."""
        end = time.monotonic() + seconds
        while True:
            found = None
            with contextlib.suppress(PageLeft):
                found = await self.value(expression)
            if found:
                return found
            if time.monotonic() > end:
                text = await self.value("document.body.innerText")
                raise AssertionError(
                    f"never true: {expression}\nfaults: {self.faults}\n"
                    f"unanswered: {list(self.pending.values())}, failed: {self.failed}\nthe page says:\n{text}"
                )
            await asyncio.sleep(0.02)

    async def shows(self, text: str, *, within: str = "body", seconds: float = 60.0) -> None:
        """Return once the text can be read in an element."""
        element = f"document.querySelector({json.dumps(within)})"
        await self.until(f"{element}?.innerText.includes({json.dumps(text)})", seconds=seconds)

    async def text(self, selector: str = "body") -> str:
        return str(await self.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def click(self, text: str, *, within: str = "body") -> None:
        """Press the first visible button or link with this text, with the mouse, once it lies still."""
        place = f"""(() => {{
              const named = [...document.querySelectorAll({json.dumps(within)} + ' :is(button, a, summary)')];
              const found = named.find((e) => e.innerText.trim().startsWith({json.dumps(text)})
                && e.checkVisibility());
              if (!found) return null;
              found.scrollIntoView({{block: "center"}});
              const box = found.getClientRects()[0];
              return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        spot, before = await self.until(place), None
        while spot != before:
            await asyncio.sleep(0.05)
            spot, before = await self.until(place), spot
        for kind in ("mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent", type=kind, x=spot[0], y=spot[1], button="left", clickCount=1
            )

    async def write(self, selector: str, text: str) -> None:
        """Put the focus there and type."""
        await self.until(f"(document.querySelector({json.dumps(selector)})?.focus(), true)")
        await self.call("Input.insertText", text=text)

    async def key(self, key: str, *, shift: bool = False) -> None:
        code, number, text = _KEYS[key]
        common: dict[str, Any] = {
            "key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": 8 if shift else 0
        }  # fmt: skip
        down = {**common, "text": text} if text else common
        await self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **down)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def picture(self, *, whole: bool = False) -> bytes:
        """A PNG of what is seen, or of the whole page."""
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])


@contextlib.contextmanager
def running(folder: Path) -> Iterator[str]:
    """Start Chromium with an empty profile in ``folder``; yields its WebSocket address, and ends it."""
    assert CHROMIUM is not None
    profile = folder / "profile"
    profile.mkdir()
    process = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)},
    )
    try:
        where = profile / "DevToolsActivePort"
        end = time.monotonic() + 60
        while not (where.exists() and len(where.read_text().splitlines()) == 2):
            assert process.poll() is None, "Chromium ended at once"
            assert time.monotonic() < end, "Chromium did not start within a minute"
            time.sleep(0.05)
        port, path = where.read_text().split()
        yield f"ws://127.0.0.1:{port}{path}"
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[Browser]:
    """Drive the Chromium at ``address``; the tabs that were opened are gone afterwards."""
    async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
        browser = Browser(socket)
        try:
            yield browser
        finally:
            await browser.close()
