"""Rule files that are edited while runs are guarded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
import pytest

from fusewire_webhook.actuators.fake import FakeActuator
from fusewire_webhook.service import serving
from fusewire_webhook.settings.config import Config, ListenConfig, PrometheusConfig, RunConfig
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


class Edits:
    """A folder of rules; what was loaded of it, and said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wrong: list[str] = []
        self.loads: list[list[str]] = []
        self.said: list[str] = []
        self.write("a.yaml", "old")
        self.reload = RuleReload(
            [folder], loaded=read_rules([folder]), judge=lambda: self.wrong, load=self._load, say=self.said.append
        )

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    async def _load(self, files: Sequence[str]) -> None:
        self.loads.append([Path(file).name for file in files])

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
    """Either ends the remark; only what is put right is loaded. A folder without rules is wrong, too."""
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
    assert (edits.reload.refused, edits.loads) == ("", [])
    (tmp_path / "a.yaml").unlink()
    await edits.look(2)
    assert "no rule file is there" in edits.reload.refused
    edits.wrong = []
    edits.write("a.yaml", "right")
    await edits.look(2)
    assert (edits.reload.refused, edits.loads) == ("", [["a.yaml"]])


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

        async def until(condition: Callable[[], bool]) -> None:
            async with asyncio.timeout(60):
                while not condition():  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

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
