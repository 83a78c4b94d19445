"""The one look at everything, without servers."""

from __future__ import annotations

from typing import Any

from fusewire_webhook.watch.prometheus import RuleGroup, RuntimeInfo, Sample
from fusewire_webhook.watch.survey import survey


class Answers:
    """A Prometheus that scrapes strangers too."""

    async def runtime(self) -> RuntimeInfo:
        return RuntimeInfo(start_time="", last_config_time="", reload_succeeded=True)

    async def now(self) -> float:
        return 0.0

    async def rules(self) -> list[RuleGroup]:
        return []

    async def query(self, expr: str, time: float | None = None) -> list[Sample]:
        attempts = ("3", "", "none", "1" * 5000) if "rl_step" in expr else ()
        return [Sample(labels={"run": "r", "attempt": text}, value=7.0, time=0.0) for text in attempts]


async def test_a_strangers_label_is_no_attempt() -> None:
    """Whatever stands in the label of a series that is not ours, the look at our own goes on."""
    answers: Any = Answers()
    assert (await survey(answers, scrape_interval=1.0)).steps == {("r", 3): 7.0}
