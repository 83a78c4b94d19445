"""A run in observe mode in a real browser: what would have stopped it is seen at a glance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from breaker.doubles import quick, trip

from .browser import PHONE
from .conftest import OpenPage
from .site import site

RUN = "cartpole"


@pytest.mark.parametrize("how", [{}, {"size": PHONE}], ids=["laptop", "phone"])
async def test_what_would_have_tripped_is_named_and_is_not_green(
    tmp_path: Path, open_page: OpenPage, how: dict[str, Any]
) -> None:
    """List and run page alike; before that the run is only said to be observed. The timeline tells it once."""
    async with site(tmp_path, runs={RUN: quick(mode="observe")}) as served:
        page = await open_page(served, **how)
        await page.shows("observing", within="tbody .tag")
        assert await page.value("document.querySelector('tbody .badge').classList.contains('closed')")
        names = ("KLSpike", "EntropyCollapse", "ReturnCollapse")
        for name in (*names, "KLSpike"):
            await served.engine.submit(RUN, trip(0, name=name))
        told = "observing; would have tripped: KLSpike 1×, EntropyCollapse 1×, ReturnCollapse 1×"
        await page.shows(told, within="tbody .tag")
        assert "closed" in await page.text("tbody .badge")
        assert not await page.value("document.querySelector('tbody .badge').classList.contains('closed')")
        assert await page.value("document.documentElement.scrollWidth <= innerWidth")
        await page.click(RUN, within="tbody")
        await page.shows(told, within=".states")
        assert await page.value("document.documentElement.scrollWidth <= innerWidth")
        noted = "[...document.querySelectorAll('.entry.would_have_acted')].length"
        await page.until(f"{noted} === 3")
        assert served.actuator.stops == []
