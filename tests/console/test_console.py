"""The console in a real browser, on the real application, engine and journal."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from breaker.doubles import trip, write_snapshot
from fusewire_webhook.breaker.events import Command, StepsWatched
from fusewire_webhook.engine import sight
from fusewire_webhook.postmortem import postmortem_path
from fusewire_webhook.postmortem.build import write_postmortem
from fusewire_webhook.watch.deadman import WatchStatus
from postmortem import recorded

from .browser import LAPTOP, PHONE, Page
from .conftest import Clock, OpenPage
from .site import TOKEN, Site, site

RUN = "cartpole"
DIALOG = "dialog.command"


async def fill(page: Page, why: str, *, who: str = "ada", sure: bool = True) -> None:
    """Fill in a command's form."""
    await page.write("#command-why", why)
    await page.value("document.querySelector('#command-who').value = ''")
    await page.write("#command-who", who)
    if sure:
        await page.value("document.querySelector('#command-sure').click()")


async def send(page: Page) -> None:
    await page.value(f"document.querySelector('{DIALOG} button[type=submit]').click()")


async def closed(page: Page) -> None:
    await page.until(f"document.querySelector('{DIALOG}') === null")


async def test_a_change_of_state_shows_without_reloading(tmp_path: Path, open_page: OpenPage) -> None:
    """A trip appears in the list, in its filter's count and for screen readers while the page lies there."""
    async with site(tmp_path, RUN, "acrobot") as served:
        page = await open_page(served)
        await page.shows("closed", within="tbody")
        served.actuator.unstoppable.add(RUN)
        await served.engine.submit(RUN, trip(0, name="KLSpike"))
        await page.shows("locked", within=f"tbody tr:has(a[href$='{RUN}'])")
        assert (await page.text("tbody tr")).startswith("■")  # what needs somebody stands first
        await page.shows("host needs attention", within="tbody tr")
        await page.until("document.querySelector('#announcer').textContent.includes('cartpole is locked')")
        assert await page.value("document.title") == "(1) fusewire"


async def test_runs_are_filtered_by_state_and_name(tmp_path: Path, open_page: OpenPage) -> None:
    """Filters narrow the list and say how much is left."""
    async with site(tmp_path, *(f"sweep-{n}" for n in range(60)), RUN) as served:
        await served.engine.command(RUN, Command(verb="pause", who="ada", why="looking"))
        page = await open_page(served)
        await page.shows("1–50 of 61 runs")
        await page.click("Next")
        await page.shows("51–61 of 61 runs")
        await page.click("paused")
        await page.shows("1–1 of 1 runs")
        assert RUN in await page.text("tbody")
        await page.click("paused")
        await page.write("#search", "SWEEP-5")
        await page.shows("1–11 of 11 runs")
        await page.write("#search", "x")
        await page.shows("No run matches.")


async def test_a_command_is_journaled_with_who_and_why(tmp_path: Path, open_page: OpenPage) -> None:
    """A trip needs a reason, a name and a confirmation; then it is done, shown, and journaled once."""
    async with site(tmp_path, RUN) as served:
        page = await open_page(served, f"/#/run/{RUN}")
        await page.click("Trip…")
        await send(page)
        await fill(page, "the critic looks wrong", sure=False)
        await send(page)
        assert await page.value("document.querySelector('#command-sure').validity.valueMissing")
        assert served.journaled(RUN, "command") == []
        await page.value("document.querySelector('#command-sure').click()")
        await send(page)
        await closed(page)
        await page.shows("Journaled: trip by ada", within=".result")
        await page.shows("ada: trip: the critic looks wrong", within=".timeline")
        (command,) = served.journaled(RUN, "command")
        assert (command["who"], command["why"], command["source"]) == ("ada", "the critic looks wrong", "console")
        await page.shows("half-open", within=".states")
        assert served.actuator.stops == [(RUN, 0)]


async def test_every_command_reaches_the_engine(tmp_path: Path, open_page: OpenPage) -> None:
    """Pause, resume, promote, rollback and reset do what they say, each offered only where it makes sense."""
    async with site(tmp_path, RUN) as served:
        first = await served.promoted(RUN, 100)
        second = write_snapshot(served.runs_dir / RUN, 200, 0)
        page = await open_page(served, f"/#/run/{RUN}")
        await page.shows("step 200", within=".ladder")
        buttons = "[...document.querySelectorAll('.commands button')]"
        offered = f"{buttons}.filter((b) => b.checkVisibility()).map((b) => b.textContent)"
        assert await page.value(offered) == ["Trip…", "Pause…", "Promote…", "Roll back…"]

        async def decide(verb: str, snapshot: str = "", *, sure: bool = False) -> None:
            await page.click(f"{verb}…")
            if snapshot:
                await page.value(f"document.querySelector('#command-snapshot').value = '{snapshot}'")
            await fill(page, f"because of {verb}", sure=sure)
            await send(page)
            await closed(page)

        await decide("Pause")
        await page.shows("Paused by ada (console): because of Pause", within=".pauses")
        await decide("Resume")
        await decide("Promote", second)
        await served.until(lambda: served.engine.view(RUN).promoted[-1]["name"] == second)
        await decide("Roll back", first, sure=True)
        await served.until(lambda: served.engine.view(RUN).attempt == 1 and served.engine.view(RUN).live)
        assert served.engine.view(RUN).resumed_from == first
        served.actuator.unstoppable.add(RUN)
        await served.engine.submit(RUN, trip(1))
        await page.shows("host needs attention", within=".reason")
        served.actuator.unstoppable.clear()
        await page.until(f"({offered}).join() === 'Reset…,Promote…'")
        await decide("Reset")
        await page.shows("half-open", within=".states")
        verbs = [command["verb"] for command in served.journaled(RUN, "command")]
        assert verbs == ["pause", "resume", "promote", "rollback", "reset"]


async def test_a_rollback_says_what_goes_and_brings_back(tmp_path: Path, open_page: OpenPage) -> None:
    """The confirmation counts the stable snapshots that go; one of them can be chosen again afterwards."""
    async with site(tmp_path, RUN) as served:
        first, second = await served.promoted(RUN, 100), await served.promoted(RUN, 200)
        page = await open_page(served, f"/#/run/{RUN}")
        await page.shows("step 200", within=".ladder")
        choose = "(name) => { const s = document.querySelector('#command-snapshot'); s.value = name; "
        choose = f"({choose} s.dispatchEvent(new Event('change')); }})"
        for attempt, target, told in ((1, first, "1 newer snapshot, 1 of them stable"), (2, second, "")):
            await page.until(
                f"document.querySelector('.ladder').textContent.includes('{target}') "
                f"&& [...document.querySelectorAll('.rung.quarantined')].length === {attempt - 1}"
            )
            await page.click("Roll back…")
            await page.value(f"{choose}('{target}')")
            assert ("To quarantine" in await page.text(f"{DIALOG} .sure")) == bool(told)
            assert told in await page.text(f"{DIALOG} .sure")
            await fill(page, "so")
            await send(page)
            await closed(page)
            await served.until(
                lambda n=attempt: served.engine.view(RUN).attempt == n and served.engine.view(RUN).live  # type: ignore[misc]
            )
            assert served.engine.view(RUN).resumed_from == target


async def test_a_reset_past_stable_snapshots_is_confirmed(tmp_path: Path, open_page: OpenPage) -> None:
    """The box is there only while a snapshot is chosen that a newer stable one lies after."""
    async with site(tmp_path, RUN) as served:
        first, second = await served.promoted(RUN, 100), await served.promoted(RUN, 200)
        served.actuator.unstoppable.add(RUN)
        await served.engine.submit(RUN, trip(0))
        await served.engine.wait_finished(RUN)
        served.actuator.unstoppable.clear()
        page = await open_page(served, f"/#/run/{RUN}")
        await page.shows("step 200", within=".ladder")
        await page.click("Reset…")
        choose = "(name) => { const s = document.querySelector('#command-snapshot'); s.value = name; "
        choose = f"({choose} s.dispatchEvent(new Event('change')); }})"
        box = "document.querySelector('#command-sure')"
        for target, asked in ((second, False), (first, True)):
            await page.value(f"{choose}('{target}')")
            assert await page.value(f"{box}.checkVisibility() && {box}.required") == asked
        assert "1 newer snapshot, 1 of them stable" in await page.text(f"{DIALOG} .sure")
        await fill(page, "so")
        await send(page)
        await closed(page)
        await served.until(lambda: served.engine.view(RUN).live and served.engine.view(RUN).attempt == 1)
        assert served.engine.view(RUN).resumed_from == first


async def test_a_completed_run_is_reopened(tmp_path: Path, open_page: OpenPage) -> None:
    """The button is the only one that starts anything, and only where the run is completed."""
    async with site(tmp_path, RUN) as served:
        name = await served.promoted(RUN, 100)
        served.actuator.exit(RUN, 0, 0)
        await served.engine.wait_finished(RUN)
        page = await open_page(served, f"/#/run/{RUN}")
        buttons = "[...document.querySelectorAll('.commands button')]"
        offered = f"{buttons}.filter((b) => b.checkVisibility()).map((b) => b.textContent)"
        await page.until(f"({offered}).join() === 'Reopen…,Promote…'")
        await page.click("Reopen…")
        await fill(page, "more to learn", sure=False)
        await send(page)
        await closed(page)
        await served.until(lambda: served.engine.view(RUN).live and served.engine.view(RUN).attempt == 1)
        assert served.engine.view(RUN).resumed_from == name
        await page.shows("reopen by ada: more to learn; resumed from", within=".decision-now")


async def test_a_resume_can_dismiss_what_the_pause_held(tmp_path: Path, open_page: OpenPage) -> None:
    """A checkbox names it, and only where something is held."""
    async with site(tmp_path, RUN) as served:
        page = await open_page(served, f"/#/run/{RUN}")
        box = "document.querySelector('#command-dismiss')"
        for held in (False, True):
            await served.engine.command(RUN, Command(verb="pause", who="ada", why="looking"))
            if held:
                await served.engine.submit(RUN, trip(0, name="KLSpike", starts_at="2026-01-01T00:00:00Z"))
                await page.shows("Held by the pause: KLSpike")
            await page.click("Resume…")
            assert await page.value(f"{box} !== null") == held
            if held:
                assert "KLSpike" in await page.text(f"{DIALOG} .sure")
                await page.value(f"{box}.click()")
            await fill(page, "it is fine", sure=False)
            await send(page)
            await closed(page)
        resumes = [one["dismiss"] for one in served.journaled(RUN, "command") if one["verb"] == "resume"]
        assert resumes == [False, True]


async def test_a_refusal_is_shown_and_nothing_typed_is_lost(tmp_path: Path, open_page: OpenPage) -> None:
    """The engine's sentence stands in the form; a form that was closed keeps its reason."""
    async with site(tmp_path, RUN) as served:
        first = await served.promoted(RUN, 100)
        page = await open_page(served, f"/#/run/{RUN}")
        await page.shows("step 100", within=".ladder")
        await page.click("Roll back…")
        await page.value(f"document.querySelector('#command-snapshot').value = '{first}'")
        await fill(page, "a long thought")
        (served.runs_dir / RUN / "snapshots" / first).rename(served.runs_dir / RUN / "elsewhere")
        await send(page)
        await page.shows("no usable snapshot", within=f"{DIALOG} .error")
        await page.key("Escape")
        await closed(page)
        await page.click("Roll back…")
        assert await page.value("document.querySelector('#command-why').value") == "a long thought"
        assert served.journaled(RUN, "command") == []


async def sign_in(page: Page, token: str = TOKEN) -> None:
    await page.until("document.querySelector('#signin')?.open")
    await page.value("document.querySelector('#signin-token').value = ''")
    await page.write("#signin-token", token)
    await page.key("Enter")


async def test_the_token_opens_the_console(tmp_path: Path, open_page: OpenPage) -> None:
    """A wrong token gets a sentence, the right one a cookie that no script can read; signing out ends it."""
    async with site(tmp_path, RUN, token=TOKEN) as served:
        page = await open_page(served)
        await sign_in(page, "wrong-token-wrong-token")
        await page.shows("This is not the command token.", within="#signin")
        assert RUN not in await page.text()
        await sign_in(page)
        await page.shows(RUN, within="tbody")
        assert await page.value("document.cookie") == ""
        assert TOKEN not in await page.value("JSON.stringify([{...localStorage}, {...sessionStorage}])")
        await page.open(served.url + f"/#/run/{RUN}")
        await page.shows("guarded from now on")  # a new load of the page is still signed in
        await page.click("Sign out")
        await page.shows("You have signed out.", within="#signin")
        assert await page.value("fetch('/api/runs').then((r) => r.status)") == 401


END_OF_THE_SESSION = """(() => {
  const plain = window.setTimeout;
  window.setTimeout = (call, ms, ...rest) => {
    if (ms === 12 * 3600 * 1000) window.endOfTheSession = call;
    return plain(call, ms, ...rest);
  };
})()"""


async def test_a_session_that_ends_loses_nothing(tmp_path: Path, open_page: OpenPage, clock: Clock) -> None:
    """In the middle of a command the page asks for the token again; the reason is still there and is sent once."""
    async with site(tmp_path, RUN, token=TOKEN, clock=clock) as served:
        page = await open_page(served, "/about")
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=END_OF_THE_SESSION)
        await page.open(f"{served.url}/#/run/{RUN}")
        await sign_in(page)
        await page.click("Trip…")
        await fill(page, "typed before the session ended")
        clock.now += 12 * 3600.0
        await page.value("endOfTheSession()")
        await page.shows("Your session has ended. Sign in again; what you typed is still there.", within="#signin")
        assert await page.value("document.querySelector('#command-why').value") == "typed before the session ended"
        await sign_in(page)
        await page.until("!document.querySelector('#signin').open")
        await send(page)
        await closed(page)
        (command,) = served.journaled(RUN, "command")
        assert command["why"] == "typed before the session ended"


async def test_a_command_without_a_session_is_not_sent_by_itself(tmp_path: Path, open_page: OpenPage) -> None:
    """The server forgot the browser while a command was being sent: nothing is done until it is sent again."""
    async with site(tmp_path, RUN, token=TOKEN) as served:
        page = await open_page(served, f"/#/run/{RUN}")
        await sign_in(page)
        await page.click("Pause…")
        await fill(page, "holding it", sure=False)
        await page.call("Network.clearBrowserCookies")
        await send(page)
        await sign_in(page)
        await page.shows("Nothing was sent; sign in and send it again.", within=DIALOG)
        assert served.journaled(RUN, "command") == []
        await send(page)
        await closed(page)
        assert len(served.journaled(RUN, "command")) == 1


async def test_who_acts_on_an_old_picture_is_told(tmp_path: Path, open_page: OpenPage) -> None:
    """Another tab decided meanwhile: this one says so before and on sending, and goes on only when told again."""
    async with site(tmp_path, RUN) as served:
        ada = await open_page(served, f"/#/run/{RUN}")
        ben = await open_page(served, f"/#/run/{RUN}", context=ada.context)
        for page, why in ((ada, "ada's reason"), (ben, "ben's reason")):
            await page.click("Trip…")
            await fill(page, why, who=why[:3])
        await send(ada)
        await closed(ada)
        await served.until(lambda: served.engine.view(RUN).attempt == 1 and served.engine.view(RUN).live)
        await ben.shows("Since you opened this: attempt 1 started", within=f"{DIALOG} .news")
        await send(ben)
        await ben.shows("since you looked at cartpole, this happened: ada: trip: ada's reason; then", within=DIALOG)
        await ben.shows("Stop attempt 1 of cartpole", within=DIALOG)
        assert await ben.value("document.querySelector('#command-why').value") == "ben's reason"
        assert [command["who"] for command in served.journaled(RUN, "command")] == ["ada"]
        assert served.actuator.stops == [(RUN, 0)]
        await ben.value("document.querySelector('#command-sure').click()")
        await send(ben)
        await closed(ben)
        assert [command["who"] for command in served.journaled(RUN, "command")] == ["ada", "ben"]


async def test_two_tabs_at_once_do_it_once(tmp_path: Path, open_page: OpenPage) -> None:
    """Both send in the same instant: one is done, the other hears who was first."""
    async with site(tmp_path, RUN) as served:
        await served.promoted(RUN, 100)
        pages = [await open_page(served, f"/#/run/{RUN}") for _ in range(2)]
        for number, page in enumerate(pages):
            await page.shows("step 100", within=".ladder")
            await page.click("Roll back…")
            await page.value("document.querySelector('#command-snapshot').value = 'scratch:'")
            await fill(page, f"reason {number}", who=f"person {number}")
        await asyncio.gather(*(send(page) for page in pages))
        await served.until(lambda: served.engine.view(RUN).attempt == 1 and served.engine.view(RUN).live)
        (command,) = served.journaled(RUN, "command")
        late = pages[1 - int(command["who"][-1])]
        await late.shows("not done: since you looked", within=f"{DIALOG} .error")
        await late.shows(command["who"], within=DIALOG)
        assert (await served.engine.submit(RUN, trip(None)), len(served.actuator.stops))[1] == 1


MARKUP = "<img src=x onerror=alert(1)>"


async def test_markup_stays_text(tmp_path: Path, open_page: OpenPage) -> None:
    """A run's name, an alert's text, a person's reason and a stranger's name are never parsed."""
    async with site(tmp_path, MARKUP, RUN) as served:  # no configuration lets such a name through
        ben: Any = {"who": "<b>ben</b>", "why": "<script>x()</script>"}
        await served.engine.command(MARKUP, Command(verb="reset", **ben))
        await served.until(lambda: served.engine.view(MARKUP).state == "locked")
        await served.engine.command(RUN, Command(verb="pause", **ben))
        await served.engine.submit(
            MARKUP,
            trip(
                0, name="<u>KL</u>", summary=f"{MARKUP} tripped", annotations={"description": "<svg onload=x()>"},
                labels={"alertname": "<u>KL</u>", "note": "<iframe>"},
            ),
        )  # fmt: skip
        async with aiohttp.ClientSession() as session:
            alert = {
                "status": "firing",
                "labels": {"alertname": "<i>A</i>", "run": MARKUP + "2"},
                "annotations": {},
            }
            answer = await session.post(served.url + "/alerts", json={"version": "4", "alerts": [alert]})
            assert answer.status == 200
        page = await open_page(served)
        await page.shows(MARKUP, within="tbody")
        await page.shows(f"<i>A</i> for {MARKUP}2", within="#notices")
        await page.click(MARKUP, within="tbody")
        await page.shows("<script>x()</script>", within=".timeline")
        await page.shows(f"{MARKUP} tripped", within=".timeline")
        await page.click("Reset…")
        await page.shows(f"Reset {MARKUP}", within=DIALOG)
        found = (
            "document.querySelectorAll('main img, main script, main u, main iframe, dialog img, #notices i').length"
        )
        assert await page.value(found) == 0
        await page.open(f"{served.url}/#/run/{RUN}")
        await page.shows("Paused by <b>ben</b>", within=".pauses")


async def test_a_command_by_keyboard_alone(tmp_path: Path, open_page: OpenPage) -> None:
    """From the skip link to the journal with Tab, Enter and Space; whatever has the focus shows it."""
    async with site(tmp_path, RUN) as served:
        page = await open_page(served)
        await page.shows(RUN, within="tbody")

        async def tab_to(text: str) -> None:
            for _ in range(40):
                await page.key("Tab")
                focus = await page.value(
                    """(() => {
                      const e = document.activeElement, style = getComputedStyle(e);
                      const name = e.innerText || e.labels?.[0]?.innerText || "";
                      return [name, style.outlineStyle, style.outlineWidth];
                    })()"""
                )
                assert focus[1:] == ["solid", "3px"], focus
                if focus[0].strip().startswith(text):
                    return
            raise AssertionError(f"Tab never reached {text}")

        await tab_to("Skip to the content")
        await page.key("Enter")
        assert await page.value("document.activeElement.id") == "main"
        await tab_to(RUN)
        await page.key("Enter")
        await page.shows("guarded from now on")
        await tab_to("Trip…")
        await page.key("Enter")
        await page.call("Input.insertText", text="by hand")
        await tab_to("Your name")
        await page.call("Input.insertText", text="ada")
        await tab_to("Stop attempt 0")
        await page.key(" ")
        await tab_to("Trip")
        await page.key("Enter")
        await closed(page)
        (command,) = served.journaled(RUN, "command")
        assert (command["verb"], command["who"], command["why"]) == ("trip", "ada", "by hand")


async def test_the_signal_around_a_trip(tmp_path: Path, open_page: OpenPage) -> None:
    """The newest trip shows the signal that its rule names, with what is not finite; another one can be chosen."""
    async with site(tmp_path, RUN) as served:
        now = time.time()
        served.prometheus.curve = lambda at: 0.02 if at < now - 10 else math.nan
        await served.engine.submit(RUN, trip(0, name="KLSpike"))
        page = await open_page(served, f"/#/run/{RUN}")
        await page.shows("Approximate KL divergence of the update", within="figcaption")
        await page.shows("values that are not finite", within="figcaption")
        assert await page.value("document.querySelector('text.odd').textContent") == "NaN"
        assert served.prometheus.asked == [f'max by (attempt) (rl_approx_kl{{run="{RUN}"}})']
        await page.shows("attempt 0", within=".legend")
        await page.value(
            """(() => {
              const select = document.querySelector("figure select");
              select.value = "value_loss";
              select.dispatchEvent(new Event("change"));
            })()"""
        )
        await page.shows("Loss of the critic", within="figcaption")


async def test_postmortems_are_linked(tmp_path: Path, open_page: OpenPage) -> None:
    """A postmortem that is written while the page lies there gets a link that opens it."""
    async with site(tmp_path, RUN, token=TOKEN) as served:
        page = await open_page(served, f"/#/run/{RUN}")
        await sign_in(page)
        await page.shows("guarded from now on")
        report = postmortem_path(served.runs_dir / RUN, 0)
        report.parent.mkdir()
        report.write_text("<!doctype html><title>x</title><p>what happened to attempt 0")
        await page.click("attempt 0", within=".postmortems")
        await page.shows("what happened to attempt 0")


@pytest.mark.parametrize(
    ("address", "href"),
    [
        ("docs/runbooks/KLSpike.md", "/console/runbooks/KLSpike.md"),
        ("https://wiki.example/KL", "https://wiki.example/KL"),
        ("javascript:alert(1)", None),
        ("docs/runbooks/../KLSpike.md", None),
    ],
)
async def test_an_alert_links_its_runbook(
    tmp_path: Path, open_page: OpenPage, address: str, href: str | None
) -> None:
    """One of the pack is served here and begins with tonight; a web page is linked; anything else is text."""
    async with site(tmp_path, RUN) as served:
        alert = replace(trip(0, name="KLSpike"), annotations={"runbook_url": address})
        await served.engine.submit(RUN, alert)
        page = await open_page(served, f"/#/run/{RUN}")
        await page.click("details", within=".entry.trip")
        await page.shows("runbook:", within=".entry.trip .what")
        link = "document.querySelector('.entry.trip .detail a')"
        assert await page.value(f"{link}?.getAttribute('href')") == href
        if href == "/console/runbooks/KLSpike.md":
            await page.click("KLSpike", within=".detail")
            await page.shows("## Tonight")


async def test_a_notification_leads_to_the_postmortem(tmp_path: Path, open_page: OpenPage) -> None:
    """Its link asks for the token, waits for the postmortem that is being written, and opens it by itself."""
    async with site(tmp_path, RUN, token=TOKEN) as served:
        page = await open_page(served, f"/#/postmortem/{RUN}/1")
        await sign_in(page)
        await page.shows("It is not written yet; it opens here as soon as it is.")
        for attempt in (0, 1):
            report = postmortem_path(served.runs_dir / RUN, attempt)
            report.parent.mkdir(exist_ok=True)
            report.write_text(f"<!doctype html><title>x</title><p>what happened to attempt {attempt}")
            if attempt == 0:
                await asyncio.sleep(2.5)  # it is not the one that is waited for
        await page.shows("what happened to attempt 1")
        await page.open(f"{served.url}/#/postmortem/{RUN}")
        await page.shows("what happened to attempt 1")
        await page.open(f"{served.url}/#/postmortem/acrobot/0")
        await page.shows("acrobot", within=".empty")


async def test_a_run_that_is_not_guarded(tmp_path: Path, open_page: OpenPage) -> None:
    """An old link says so, and a broken one leads to the list."""
    async with site(tmp_path, RUN) as served:
        page = await open_page(served, "/#/run/acrobot")
        await page.shows("No run of the name acrobot is guarded here.")
        page = await open_page(served, "/#/run/%E0%A4%A")
        await page.shows(RUN, within="tbody")


async def test_the_snapshot_ladder(tmp_path: Path, open_page: OpenPage) -> None:
    """Each rung has name, step, state and why; a change shows by itself."""
    async with site(tmp_path, RUN) as served:
        stable = await served.promoted(RUN, 100)
        waiting = write_snapshot(served.runs_dir / RUN, 200, 0)
        served.verdicts[RUN] = [{"name": waiting, "answer": "inconclusive", "reasons": ["40 of 100 steps"]}]
        page = await open_page(served, f"/#/run/{RUN}")
        await page.shows("inconclusive; 40 of 100 steps", within=".rung.candidate")
        await page.shows(stable, within=".rung.promoted")
        await served.engine.submit(RUN, trip(0, name="KLSpike"))
        await page.shows("KLSpike on attempt 0", within=".rung.quarantined")


async def test_repeated_alerts_are_one_line(tmp_path: Path, open_page: OpenPage) -> None:
    """What Alertmanager repeats every minute does not bury the decisions; older pages can be reached."""
    async with site(tmp_path, RUN) as served:
        for number in range(230):
            await served.engine.submit(RUN, trip(None, name="Drawdown" if number >= 10 else f"Early{number}"))
        page = await open_page(served, f"/#/run/{RUN}")
        await page.shows("· 200×", within=".timeline")
        await page.until("document.querySelector('svg.plot') !== null")
        await page.click("Show older entries")
        await page.shows("· 220×", within=".timeline")
        await page.shows("Early0", within=".timeline")
        await page.until("document.querySelector('.timeline + button').hidden")
        await served.engine.submit(RUN, trip(None, name="Drawdown"))
        await page.shows("· 221×", within=".timeline")


async def test_alerts_of_a_dead_attempt_do_not_read_like_trips(tmp_path: Path, open_page: OpenPage) -> None:
    """They are counted at their first report, also where several interleave; a late one is marked as past."""
    async with site(tmp_path, RUN) as served:
        await served.promoted(RUN, 100)
        await served.engine.submit(RUN, trip(0, name="KLSpike"))
        await served.until(lambda: served.engine.view(RUN).attempt == 1 and served.engine.view(RUN).live)
        page = await open_page(served, f"/#/run/{RUN}")
        await page.shows("attempt 1 runs", within=".timeline")
        for _ in range(5):
            for name in ("KLSpike", "EntropyCollapse"):
                await served.engine.submit(RUN, trip(0, name=name))
        await page.shows("· 5×", within=".entry.older")
        await page.shows("· 6×", within=".entry.trip")
        rows = await page.value(
            "[...document.querySelectorAll('.entry.alert_reported .words')].map((e) => e.innerText)"
        )
        assert len(rows) == 2
        assert "EntropyCollapse firing (attempt 0)" in rows[0]
        assert "(older attempt: recorded only)" in rows[0]
        assert "KLSpike firing (attempt 0)" in rows[1]
        assert "older attempt" not in rows[1]
        assert await page.value("document.querySelector('.entry.older .trip-plot')") is None
        await page.call("Page.reload")
        await page.shows("· 6×", within=".entry.trip")
        assert await page.value("document.querySelectorAll('.entry.alert_reported').length") == 2
        await served.engine.submit(RUN, trip(1, name="KLSpike"))
        await page.shows("KLSpike firing (attempt 1)", within=".entry.trip")


async def test_a_locked_run_on_a_phone_leads_to_its_postmortem_first(tmp_path: Path, open_page: OpenPage) -> None:
    """Banner's link, reset and list of postmortems are on the first screen; the timeline comes in parts."""
    async with site(tmp_path, RUN) as served:
        for number in range(60):
            await served.engine.submit(RUN, trip(None, name=f"Early{number}"))
        served.actuator.unstoppable.add(RUN)
        await served.engine.submit(RUN, trip(0))
        await served.until(lambda: served.engine.view(RUN).state == "locked")
        report = postmortem_path(served.runs_dir / RUN, 0)
        report.parent.mkdir()
        report.write_text("<!doctype html><title>x</title><p>what happened to attempt 0")
        page = await open_page(served, f"/#/run/{RUN}", size=PHONE)
        await page.shows("attempt 0", within=".postmortems")
        await page.until("document.querySelector('svg.plot') !== null")
        top = "document.querySelector('%s').getBoundingClientRect().top"
        for element in (".todo a", ".commands button:not([hidden])", ".postmortems"):
            assert await page.value(top % element) < PHONE[1]
        assert await page.value("document.querySelectorAll('.timeline .entry').length") == 25
        assert await page.value("document.documentElement.scrollHeight") < 6 * PHONE[1]
        await page.click("Show older entries")
        await page.shows("Early0", within=".timeline")
        await page.until("document.querySelector('.timeline + button').hidden")
        await page.click("Postmortem of attempt 0")
        await page.shows("what happened to attempt 0")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_attempts_of_one_plot_are_told_apart(tmp_path: Path, open_page: OpenPage, dark: bool) -> None:
    """Each line has its attempt's name beside it; no two of six share a colour or a pattern of dashes."""
    async with site(tmp_path, RUN) as served:
        served.prometheus.attempts = tuple(str(number) for number in range(6))
        await served.engine.submit(RUN, trip(0, name="KLSpike"))
        page = await open_page(served, f"/#/run/{RUN}", dark=dark)
        await page.until("document.querySelectorAll('.plot text.name').length === 6")
        assert await page.value("[...document.querySelectorAll('.plot text.name')].map((e) => e.textContent)") == [
            f"attempt {number}" for number in range(6)
        ]
        styles = await page.value(
            """[...document.querySelectorAll(".plot .line")].map((line) => {
              const style = getComputedStyle(line);
              return [style.stroke, style.strokeDasharray];
            })"""
        )
        assert len({stroke for stroke, _ in styles}) == len({dashes for _, dashes in styles}) == 6
        boxes = await page.value(
            """[...document.querySelectorAll(".plot text.name")].map((text) => {
              const { x, y } = text.getBoundingClientRect();
              return [x, y];
            })"""
        )
        assert len({(round(x), round(y)) for x, y in boxes}) == 6


def a_postmortem(runs: Path) -> Path:
    """The page of a recorded incident."""
    recorded.write_run(runs)
    events = recorded.recovered()
    annotations = {"description": "d", "runbook_url": "docs/runbooks/KLSpike.md"}
    recorded.write_journal(runs, [*events[:6], recorded.alert(annotations=annotations), *events[7:]])
    recorded.keep(runs / recorded.RUN, 0, recorded.observed())
    return write_postmortem(runs, recorded.RUN).html


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
async def test_a_postmortem_is_read_on_a_phone(tmp_path: Path, open_page: OpenPage, size: tuple[int, int]) -> None:
    """Whether it can wait and what tripped are on its first screen; no trip line is beyond its edge."""
    async with site(tmp_path, recorded.RUN) as served:
        written = await asyncio.to_thread(a_postmortem, tmp_path / "elsewhere")
        shown = postmortem_path(served.runs_dir / recorded.RUN, 0)
        shown.parent.mkdir()
        shown.write_bytes(written.read_bytes())
        page = await open_page(served, f"/api/runs/{recorded.RUN}/postmortems/{shown.name}", size=size)
        await page.shows("It can wait")
        bottoms = await page.value(
            """["It can wait", "diverged: KLSpike"].map((words) => [...document.querySelectorAll("p")]
              .find((p) => p.innerText.includes(words)).getBoundingClientRect().top)"""
        )
        assert 0 < bottoms[0] < bottoms[1] < size[1] - 100
        trips = await page.value(
            """[...document.querySelectorAll("[id*=trip-]")].map((line) => {
              const { left, right } = line.getBoundingClientRect();
              return [left, right];
            })"""
        )
        assert trips
        assert all(0 < left <= right < size[0] for left, right in trips)
        assert await page.value("document.documentElement.scrollWidth <= innerWidth")
        await page.click("KLSpike")
        await page.until(
            "Math.abs(document.querySelector('#runbook-klspike').getBoundingClientRect().top) < innerHeight"
        )


async def test_a_degraded_watch_and_a_lost_webhook_are_said(tmp_path: Path, open_page: OpenPage) -> None:
    """The page never looks calm or live when it is not, and finds back by itself."""
    async with site(tmp_path, RUN) as served:
        served.watch[0] = WatchStatus(problems={"watchdog": "no beat for 50 s"})
        page = await open_page(served)
        await page.shows("watchdog: no beat for 50 s", within="#notices")
        await page.shows("live", within="#connection")
    await page.shows("connection lost, state of", within="#connection")
    port = int(served.url.rpartition(":")[2])
    async with site(tmp_path, RUN, port=port):
        await page.shows("live", within="#connection")
        await page.until("document.querySelector('#notices').innerText === ''")


async def test_an_open_page_shows_how_far_a_run_has_come(tmp_path: Path, open_page: OpenPage) -> None:
    """On both pages, while the journal has nothing of it."""
    async with site(tmp_path, RUN) as served:
        page = await open_page(served)
        await page.shows("live", within="#connection")
        served.engine.saw(RUN, StepsWatched(attempt=0, step=1234, watched=20))
        await page.shows("1,234", within="table.fleet")
        await page.open(f"{served.url}/#/run/{RUN}")
        await page.shows("1,234", within="dl.facts")
        served.engine.saw(RUN, StepsWatched(attempt=0, step=2345, watched=20))
        await page.shows("2,345", within="dl.facts")
        assert served.journaled(RUN, "steps_watched") == []


async def test_a_run_that_no_rule_sees_does_not_look_watched(
    tmp_path: Path, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both pages say so while nothing is journaled, and take it back when Prometheus sees the run."""
    monkeypatch.setattr(sight, "START_SECONDS", -1.0)
    async with site(tmp_path, RUN) as served:
        page = await open_page(served)
        await page.shows("live", within="#connection")
        served.engine.looked(RUN, 0, None, scrape_interval=1.0)
        await page.shows("not watched", within="table.fleet")
        await page.open(f"{served.url}/#/run/{RUN}")
        await page.shows("not watched: the trainer has not called fusewire.attach() since", within=".states")
        served.engine.looked(RUN, 0, 3.0, scrape_interval=1.0)
        await page.shows("training, watched", within=".states")
        await page.open(f"{served.url}/#/")
        await page.shows(RUN, within="table.fleet")
        assert "not watched" not in await page.text("table.fleet")


async def test_the_watch_is_told_to_an_open_page(tmp_path: Path, open_page: OpenPage) -> None:
    """While runs report: what degrades, what is whole again, and each alert for a run that is not guarded."""
    async with site(tmp_path, RUN) as served, aiohttp.ClientSession() as session:
        page = await open_page(served)
        await page.shows("live", within="#connection")

        async def train() -> None:
            while True:
                await served.engine.submit(RUN, StepsWatched(attempt=0, step=1, watched=1))
                await asyncio.sleep(0.3)

        training = asyncio.create_task(train())
        served.watch[0] = WatchStatus(problems={"watchdog": "no beat for 50 s"})
        await page.shows("watchdog: no beat for 50 s", within="#notices")
        await page.until("document.querySelector('#announcer').textContent.includes('The watch is degraded')")
        served.watch[0] = WatchStatus(remarks={"prometheus": "the last reload failed"})
        await page.shows("prometheus: the last reload failed", within="#notices")
        served.watch[0] = WatchStatus()
        await page.until("document.querySelector('#notices').innerText === ''")
        alert = {"status": "firing", "labels": {"alertname": "KLSpike", "run": "other"}, "annotations": {}}
        for count in (1, 2):
            await session.post(served.url + "/alerts", json={"version": "4", "alerts": [alert]})
            await page.shows(f"KLSpike for other, {count}×", within="#notices")
        training.cancel()


async def test_a_new_journal_replaces_what_the_page_knew(tmp_path: Path, open_page: OpenPage) -> None:
    """The runs folder was replaced under an open page: it shows the new journal's state and entries."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    async with site(tmp_path / "old", RUN) as served:
        for _ in range(40):
            await served.engine.submit(RUN, trip(None, name="Early"))
        served.actuator.unstoppable.add(RUN)
        await served.engine.submit(RUN, trip(0, name="KLSpike"))
        page = await open_page(served, f"/#/run/{RUN}")
        await page.shows("host needs attention", within=".reason")
        await page.shows("KLSpike", within=".timeline")
    port = int(served.url.rpartition(":")[2])
    async with site(tmp_path / "new", RUN, port=port) as served:
        await page.shows("live", within="#connection")
        await page.shows("closed", within=".states")
        await page.until("!document.querySelector('.timeline').innerText.includes('KLSpike')")
        await served.engine.submit(RUN, trip(None, name="Later"))
        await page.shows("Later", within=".timeline")


HIDE = """(() => {
  Object.defineProperty(document, "hidden", { get: () => window.hides, configurable: true });
  window.hides = %s;
  document.dispatchEvent(new Event("visibilitychange"));
})()"""
FASTER = """(() => {
  const plain = window.setTimeout;
  window.setTimeout = (call, ms, ...rest) => plain(call, ms >= 30000 && ms <= 60000 ? ms / 100 : ms, ...rest);
})()"""


async def test_the_title_of_a_hidden_tab_stays_true(tmp_path: Path, open_page: OpenPage) -> None:
    """It gives its stream back after a minute and goes on counting; what it cannot know any more is marked."""
    async with site(tmp_path, RUN, token=TOKEN) as served:
        page = await open_page(served, "/about")
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=FASTER)
        await page.open(served.url)
        await sign_in(page)
        await page.shows("live", within="#connection")
        await page.value(HIDE % "true")
        await page.shows("resting while the tab is hidden", within="#connection")
        asked = page.asked.count(served.url + "/api/events")
        served.actuator.unstoppable.add(RUN)
        await served.engine.submit(RUN, trip(0, name="KLSpike"))
        await page.until("document.title === '(1) fusewire'")
        await page.value(HIDE % "false")
        await page.shows("live", within="#connection")
        assert page.asked.count(served.url + "/api/events") == asked + 1
        await page.value(HIDE % "true")
        await page.shows("resting while the tab is hidden", within="#connection")
        await page.call("Network.clearBrowserCookies")
        await page.until("document.title === '(?) fusewire'")
        await sign_in(page)
        await page.until("document.title === '(1) fusewire'")
    await page.until("document.title === '(?) fusewire'")


async def test_a_file_that_does_not_come_is_asked_for_again(tmp_path: Path, open_page: OpenPage) -> None:
    """A request that a changing network drops does not leave a page that waits for ever."""
    async with site(tmp_path, RUN) as served:
        page = await open_page(served)
        await page.shows(RUN, within="tbody")
        await page.call("Network.setBlockedURLs", urls=["*/words.js"])
        await page.call("Page.reload", ignoreCache=True)
        await page.shows("A file of the console did not come; it is loaded again.")
        await page.call("Network.setBlockedURLs", urls=[])
        await page.shows(RUN, within="tbody")
        assert await page.value("sessionStorage.getItem('fusewire.reloads')") is None


CONTRAST = """(() => {
  const channel = (c) => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const color = numbers(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    throw new Error("no ground");
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !e.checkVisibility() || e.closest(".unseen, noscript")) continue;
    const style = getComputedStyle(e);
    const colour = numbers(e.closest("svg") ? style.fill : style.color);
    const [a, b] = [colour, ground(e)].map(luminance).sort((x, y) => y - x);
    seen += 1;
    if ((a + 0.05) / (b + 0.05) < 4.5) low.push([walker.currentNode.data, (a + 0.05) / (b + 0.05)]);
  }
  return [seen, low];
})()"""


async def test_every_control_has_a_name(tmp_path: Path, open_page: OpenPage) -> None:
    """A screen reader can say what each button, link and field is, on each page and in each form."""
    roles = {
        "button",
        "link",
        "textbox",
        "searchbox",
        "combobox",
        "checkbox",
        "image",
        "dialog",
        "navigation",
    }
    async with site(tmp_path, RUN) as served:
        await served.promoted(RUN, 100)
        await served.engine.submit(RUN, trip(0, name="KLSpike"))
        page = await open_page(served)
        await page.shows(RUN, within="tbody")

        async def nameless() -> tuple[int, list[Any]]:
            nodes = (await page.call("Accessibility.getFullAXTree"))["nodes"]
            seen = [node for node in nodes if node.get("role", {}).get("value") in roles and not node["ignored"]]
            return len(seen), [node for node in seen if not node.get("name", {}).get("value", "").strip()]

        count, without = await nameless()
        assert (count > 5, without) == (True, [])
        await page.click(RUN, within="tbody")
        await page.until("document.querySelector('svg.plot') !== null")
        count, without = await nameless()
        assert (count > 10, without) == (True, [])
        await page.click("Roll back…")
        count, without = await nameless()
        assert (count > 5, without) == (True, [])


async def every_state(served: Site) -> None:
    """One run in each state and a busy page for the first one."""
    for run, verb in (("paused", "pause"), ("half-open", "trip")):
        await served.engine.command(run, Command(verb=verb, who="ada", why="x"))
    await served.until(
        lambda: served.engine.view("half-open").attempt == 1 and served.engine.view("half-open").live
    )
    served.actuator.unstoppable.add("locked")
    await served.engine.submit("locked", trip(0))
    await served.until(lambda: served.engine.view("locked").state == "locked")
    served.actuator.exit("completed", 0, 0)
    stable = await served.promoted("half-open", 100, 1)
    assert stable
    write_snapshot(served.runs_dir / "half-open", 200, 1)
    served.actuator.stop_seconds = 60.0
    await served.engine.submit("open", trip(0))
    served.watch[0] = WatchStatus(problems={"watchdog": "no beat for 50 s"})


@pytest.mark.parametrize("how", [{"dark": False}, {"dark": True}, {"size": PHONE}], ids=["light", "dark", "phone"])
async def test_contrast_and_width(tmp_path: Path, open_page: OpenPage, how: dict[str, Any]) -> None:
    """Every text has a contrast of at least 4.5 in both themes, and nothing is wider than the screen."""
    names = ("paused", "half-open", "locked", "completed", "open", "a-name-that-is-" + "very-" * 12 + "long")
    async with site(tmp_path, *names) as served:
        await every_state(served)
        page = await open_page(served, **how)
        await page.shows("no beat", within="#notices")

        async def look() -> None:
            seen, low = await page.value(CONTRAST)
            assert seen > 20
            assert low == []
            assert await page.value("document.documentElement.scrollWidth <= innerWidth")

        await look()
        await page.click("half-open", within="tbody")
        await page.until("document.querySelector('svg.plot') !== null")
        await page.shows("step 200", within=".ladder")
        await look()
        await page.click("Roll back…")
        await page.until(f"document.querySelector('{DIALOG}').open")
        await look()
