"""Whatever happens to a run, in whatever order: each of its trips has a postmortem that can be read."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, settings

from breaker.test_histories import Histories
from fusewire_webhook.errors import CommandError
from fusewire_webhook.postmortem import html, markdown
from fusewire_webhook.postmortem.build import run_data
from fusewire_webhook.postmortem.checks import audit
from fusewire_webhook.postmortem.costs import cost_of
from fusewire_webhook.postmortem.folder import look
from fusewire_webhook.postmortem.observed import Observed
from fusewire_webhook.postmortem.report import Facts, report
from fusewire_webhook.postmortem.telling import tell

from .recorded import RUN, entries


class Told(Histories):
    """The breaker's histories; at the end of each one every attempt is told."""

    def teardown(self) -> None:
        super().teardown()
        if not hasattr(self, "world"):
            return
        state, told = self.world.state, 0
        for attempt in range(state.attempt + 1):
            try:
                self.check(attempt)
                told += 1
            except CommandError:
                continue
        assert told or not state.trips_divergence + state.trips_infrastructure

    def check(self, attempt: int) -> None:
        """One postmortem, from the journal alone."""
        story = tell(RUN, entries(self.world.journal), attempt)
        files = look(Path("/nonexistent"), attempt, quarantined=(), target=None, origin=None)
        data = run_data(story, files, Observed())
        facts = Facts(
            story=story,
            files=files,
            observed=Observed(),
            cost=cost_of(story),
            findings=audit(data),
            runs_dir=Path("/runs"),
        )
        document = report(facts)
        text, page = markdown.render(document, plots={}), html.render(document, plots={})
        assert f"attempt {attempt} of {RUN}" in text
        assert "What to do next:" in text
        assert page.count("<section>") == 8
        locked = self.world.state.phase == "locked" and self.world.state.attempt == attempt
        assert not locked or "LOCKED: a person is needed" in page
        assert story.outcome != "locked" or story.lock_reason


Told.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTold = Told.TestCase
