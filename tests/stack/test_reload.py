"""Rule files that are edited while runs are guarded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.errors import StackError
from fusewire_webhook.service import serving
from fusewire_webhook.settings.config import Config, ListenConfig, PrometheusConfig, RunConfig
from fusewire_webhook.stack import Stack
from fusewire_webhook.stack.reload import RuleReload, read_rules
from fusewire_webhook.watch.prometheus import Prometheus

OVERRIDE = """
groups:
  - name: my-overrides
    rules:
      - record: fusewire:override
        labels: {{threshold: approx_kl, run: toy}}
        expr: {}
"""


async def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Edits:
    """A folder of rules; what was loaded of it, and said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wrong: list[str] = []
        self.loads: list[list[str]] = []
        self.said: list[str] = []
        self.failure: Exception | None = None
        """What judging or loading ends with."""
        self.fails = "load"
        self.write("a.yaml", "old")
        self.reload = RuleReload(
            [folder], loaded=read_rules([folder]), judge=self._judge, load=self._load, say=self.said.append,
            period=0.01, retry=0.0,
        )  # fmt: skip

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def _judge(self) -> Sequence[str]:
        if self.failure is not None and self.fails == "judge":
            raise self.failure
        return self.wrong

    async def _load(self, files: Sequence[str]) -> None:
        self.loads.append([Path(file).name for file in files])
        if self.failure is not None and self.fails == "load":
            raise self.failure

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.reload.look()


async def test_an_edit_is_loaded_once_it_is_complete(tmp_path: Path) -> None:
    """What still changes from look to look waits; then it is loaded once, a new file of the folder with it."""
    edits = Edits(tmp_path)
    for text in ("n", "ne", "new"):
        edits.write("a.yaml", text)
        await edits.look()
    assert edits.loads == []
    edits.write("b.yaml", "more")
    await edits.look(4)
    assert edits.loads == [["a.yaml", "b.yaml"]]
    assert edits.said == ["rules reloaded: a.yaml, b.yaml"]


async def test_a_file_that_is_written_again_as_it_was_is_no_edit(tmp_path: Path) -> None:
    """A reload makes the gate wait anew: a touched file is not worth that."""
    edits = Edits(tmp_path)
    edits.write("a.yaml", "old")
    await edits.look(3)
    assert (edits.loads, edits.said) == ([], [])


async def test_what_is_wrong_stays_out_until_it_is_put_right_or_taken_back(tmp_path: Path) -> None:
    """Either ends the remark and is loaded: Prometheus reads its files at a restart, the refused ones, too.

    A folder without rules is wrong, too.
    """
    edits = Edits(tmp_path)
    edits.wrong = ["a.yaml: no such threshold; did you mean approx_kl?", "another"]
    edits.write("a.yaml", "wrong")
    await edits.look(3)
    assert edits.reload.refused == (
        "not reloaded, the old ones stay: a.yaml: no such threshold; did you mean approx_kl? "
        "(and 1 more: `fusewire check`)"
    )
    edits.write("a.yaml", "old")
    await edits.look(2)
    assert (edits.reload.refused, edits.loads) == ("", [["a.yaml"]])
    assert edits.said == ["rules reloaded: as they were"]
    (tmp_path / "a.yaml").unlink()
    await edits.look(2)
    assert "no rule file is there" in edits.reload.refused
    edits.wrong = []
    edits.write("a.yaml", "right")
    await edits.look(2)
    assert (edits.reload.refused, edits.loads) == ("", [["a.yaml"], ["a.yaml"]])


@pytest.mark.parametrize("fails", ["judge", "load"])
@pytest.mark.parametrize("failure", [StackError("no answer"), OSError(28, "disk full"), RecursionError("too deep")])
async def test_what_could_not_be_judged_or_loaded_is_told_and_tried_again(
    tmp_path: Path, fails: str, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the error is; its traceback is logged once, and the looks go on."""
    edits = Edits(tmp_path)
    edits.fails, edits.failure = fails, failure
    looking = asyncio.ensure_future(edits.reload.run())
    edits.write("a.yaml", "new")
    await until(lambda: bool(edits.reload.refused))
    assert str(failure) in edits.reload.refused
    await asyncio.sleep(0.2)
    assert len([one for one in caplog.records if one.exc_info]) == (not isinstance(failure, StackError))
    edits.failure = None
    await until(lambda: not edits.reload.refused)
    assert edits.said == ["rules reloaded: a.yaml"]
    looking.cancel()


async def test_an_edit_whose_loading_failed_is_out_of_force_when_it_is_taken_back(tmp_path: Path) -> None:
    """Prometheus may have loaded it after the wait: the old rules are loaded again."""
    edits = Edits(tmp_path)
    edits.failure = StackError("not within 20 s")
    edits.write("a.yaml", "new")
    await edits.look(2)
    tried = len(edits.loads)
    edits.write("a.yaml", "old")
    edits.failure = None
    await edits.look(2)
    assert (edits.reload.refused, len(edits.loads)) == ("", tried + 1)


async def test_a_reload_is_one_that_comes_after_the_request(tmp_path: Path) -> None:
    """Where Prometheus does not answer at first, its last reload before that is none of these files."""
    asked, told = list[str](), list[str]()

    async def metrics(_request: web.Request) -> web.Response:
        asked.append("")
        loaded = bool(told) and len(asked) > 5
        if len(asked) == 1:
            return web.Response(status=503)
        return web.Response(
            text="prometheus_config_last_reload_successful 1\n"
            f"prometheus_config_last_reload_success_timestamp_seconds {9 if loaded else 5}\n"
        )

    async def configure(files: Sequence[str]) -> None:
        told.extend(files)

    class Child:
        """A Prometheus that has loaded its files some questions after it was told to."""

        command = SimpleNamespace(log=tmp_path / "log")

        def hang_up(self) -> None:
            told.append("hang up")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        stack = Stack(prometheus_url=str(server.make_url("")).rstrip("/"), alertmanager_url="", http=session)
        stack.children["prometheus"] = Child()  # type: ignore[assignment]
        stack._configure = configure
        await stack.load_rules(["a.yaml"])
    assert told == ["a.yaml", "hang up"]
    assert len(asked) == 6


@pytest.mark.stack
async def test_an_edited_threshold_is_in_force_and_a_broken_one_is_told(tmp_path: Path) -> None:
    """As `fusewire run` guards: by itself. A broken edit leaves the old number, and degrades nothing."""
    overrides, said = tmp_path / "my-overrides.yaml", list[str]()
    overrides.write_text(OVERRIDE.format("vector(8)"))
    config = Config(
        runs_dir=str(tmp_path / "runs"),
        listen=ListenConfig(port=0),
        prometheus=PrometheusConfig(rule_files=("default", str(overrides))),
        runs={"toy": RunConfig(command=("train",))},
    )
    async with (
        serving(config, default_port=0, actuator=FakeActuator(), progress=said.append) as service,
        aiohttp.ClientSession() as session,
    ):
        prometheus = Prometheus(service.prometheus_url, session=session)

        async def number() -> str:
            groups = await prometheus.rules()
            return next(rule.query for group in groups for rule in group.rules if rule.name == "fusewire:override")

        for edit in ("vector(15)", "vector(16)"):
            overrides.write_text(OVERRIDE.format(edit))
            await until(lambda: "rules reloaded: my-overrides.yaml" in said)
            said.clear()
            assert await number() == edit
        overrides.write_text(OVERRIDE.format("vector(17"))
        await until(lambda: bool(service.deadman.status().remarks))
        remark = service.deadman.status().remarks["rules"]
        assert remark.startswith(f"not reloaded, the old ones stay: {overrides}")
        assert (await number(), service.deadman.reasons()) == ("vector(16)", ())
        overrides.write_text(OVERRIDE.format("vector(17)"))
        await until(lambda: "rules reloaded: my-overrides.yaml" in said)
        assert (await number(), service.deadman.status().remarks) == ("vector(17)", {})
