"""Where the labelled public logs lie that the default pack was tuned on."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from fusewire_webhook.backtest.model import RunLog
from fusewire_webhook.backtest.readers import find, labelled, read

FOLDER = Path(os.environ.get("FUSEWIRE_RUNLOGS") or Path(__file__).parents[3] / "shared" / "runlogs")


def shared_logs(only: Collection[str] = ()) -> list[RunLog]:
    """All of them, or those with these names; skips the test where they are not here."""
    if not (FOLDER / "index.csv").is_file():
        pytest.skip(f"the labelled logs are not in {FOLDER}; set FUSEWIRE_RUNLOGS to their folder")
    found, _ = find([FOLDER])
    return [labelled(read(path), facts) for path, facts in found if not only or path.stem in only]
