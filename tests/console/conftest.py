"""A Chromium for all tests; each gets tabs of its own, in which nothing may have gone wrong."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from fusewire_webhook.web.session import seconds_left

from .browser import CHROMIUM, Browser, Page, connected, running
from .site import Site


class Clock:
    """Unix seconds by which sessions begin and end; they pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1.8e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """For the ``clock`` of a site."""
    clock = Clock()
    monkeypatch.setitem(seconds_left.__kwdefaults__, "clock", clock)
    return clock


OpenPage = Callable[..., Awaitable[Page]]


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running Chromium. Without one the tests are skipped, but not in CI."""
    if CHROMIUM is None:
        reason = "no Chromium here: apt-get install --no-install-recommends chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with running(tmp_path_factory.mktemp("chromium")) as address:
        yield address


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with connected(chromium) as browser:
        yield browser


@pytest.fixture
async def open_page(browser: Browser) -> AsyncIterator[OpenPage]:
    """Open the console of a site in a new tab. At the end no tab may have seen an error or asked another host."""
    opened: list[tuple[Site, Page]] = []

    async def open_page(site: Site, path: str = "/", **how: Any) -> Page:
        page = await browser.page(**how)
        opened.append((site, page))
        await page.open(site.url + path)
        return page

    yield open_page
    for site, page in opened:
        assert page.faults == []
        assert [address for address in page.asked if not address.startswith(site.url + "/")] == []
