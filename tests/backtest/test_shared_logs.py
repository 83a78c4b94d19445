"""The default pack on a quick part of the labelled logs; `make bench` scores it on all of them."""

from __future__ import annotations

from fusewire_webhook.backtest.pack import Pack
from fusewire_webhook.backtest.session import Options, backtest
from tests.backtest.shared_logs import shared_logs

COLLAPSED = ("020", "021", "022", "023", "024", "025", "026", "027")
FINE = ("031", "032", "033", "034", "035", "049", "093", "094", "109", "130", "131", "132", "133", "134")


def test_short_public_runs_are_judged_as_their_labels_say(default_pack: Pack) -> None:
    """Collapsed GRPO runs trip within 15 rows of their onset; healthy and noisy short runs do not trip."""
    verdicts, errors = backtest(shared_logs(COLLAPSED + FINE), default_pack, Options())
    assert not errors
    delays = {verdict.log.id: verdict.delay_rows for verdict in verdicts if verdict.log.id in COLLAPSED}
    assert all(delay is not None and 0 <= delay <= 15 for delay in delays.values()), delays
    assert [verdict.log.id for verdict in verdicts if verdict.log.id in FINE and verdict.tripped_row] == []
