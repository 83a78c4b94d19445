"""Writes the dashboards as Grafana's JSON.

    python -m grafana.build                                                    # grafana/dashboards/*.json
    python -m grafana.build --runbooks https://wiki.example/runbooks --console https://fusewire.example

Without arguments it makes exactly what is committed; a test compares.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from grafana import alerting, breaker, fleet, gpu, run
from grafana.frame import Links

FOLDER = Path(__file__).with_name("dashboards")
DASHBOARDS = {
    "fleet": fleet.dashboard,
    "run": run.dashboard,
    "breaker": breaker.dashboard,
    "gpu": gpu.dashboard,
    "alerting": alerting.dashboard,
}


def texts(links: Links | None = None) -> dict[str, str]:
    """The JSON of every dashboard, by its file name."""
    return {f"{name}.json": _text(make(links or Links()).build()) for name, make in DASHBOARDS.items()}


def _text(dashboard: object) -> str:
    content = json.loads(json.dumps(dashboard, cls=JSONEncoder))
    unfolded = (one for panel in content["panels"] for one in (panel, *panel.get("panels", [])))
    for place, panel in enumerate(unfolded, start=1):
        panel["id"] = place
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write them."""
    parser = argparse.ArgumentParser(prog="python -m grafana.build", description="Write the Grafana dashboards.")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder (default: grafana/dashboards)")
    parser.add_argument("--runbooks", default=Links.runbooks, help="address of the folder of runbooks")
    parser.add_argument("--console", default=Links.console, help="address of fusewire's console")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    for name, text in texts(Links(runbooks=given.runbooks.rstrip("/"), console=given.console)).items():
        (given.out / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
