"""Writes one postmortem and ends: the webhook starts this, so that plotting never costs it memory or time.

The task comes as one JSON object on the standard input (a Prometheus URL may hold a password, which does not belong
on a command line): ``{"runs_dir", "run", "attempt", "prometheus_url", "scrape_interval"}``. Exit codes: 0 written,
3 the attempt has not tripped, 1 anything else, with one line on stderr.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from fusewire_webhook.errors import CommandError, WebhookError

NOT_TRIPPED = 3
"""Exit code."""
NICENESS = 5
DEADLINE_SECONDS = 90
"""Whoever started it may be gone: it ends by itself then."""


def main() -> int:
    """Do it."""
    os.nice(NICENESS)
    signal.alarm(DEADLINE_SECONDS)
    from fusewire_webhook.postmortem.build import write_postmortem  # noqa: PLC0415 - the webhook needs the code only

    task = json.load(sys.stdin)
    try:
        write_postmortem(
            Path(task["runs_dir"]),
            task["run"],
            task["attempt"],
            prometheus_url=task["prometheus_url"],
            scrape_interval=task["scrape_interval"],
        )
    except CommandError:
        return NOT_TRIPPED
    except (WebhookError, OSError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
