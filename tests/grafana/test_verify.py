"""The check of live queries: what counts as data, what is excused, what is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grafana.verify import Answer, VerifyError, empty_panels, fill, verify


def panel(expr: str, title: str, **more: Any) -> dict[str, Any]:
    return {"type": "timeseries", "title": title, "targets": [{"refId": "A", "expr": expr}], **more}


def board(folder: Path, *panels: dict[str, Any], variables: list[dict[str, Any]] | None = None) -> Path:
    """A folder with one dashboard."""
    content = {"panels": panels, "templating": {"list": variables or []}, "annotations": {}}
    (folder / "one.json").write_text(json.dumps(content))
    return folder


class Server:
    """A Prometheus with these values (name → value as text); other names have no series."""

    def __init__(self, **values: str) -> None:
        self._values = values
        self.asked: list[str] = []

    def __call__(self, path: str, parameters: Mapping[str, str]) -> Any:
        if path == "/api/v1/label/__name__/values":
            return list(self._values)
        if path.startswith("/api/v1/label/"):
            return ["b", "a"]
        self.asked.append(parameters["query"])
        if "(" in parameters["query"]:
            raise VerifyError("Prometheus refuses: bad query")
        value = self._values.get(parameters["query"])
        found = [] if value is None else [{"metric": {}, "values": [[0, value]]}]
        return {"resultType": "matrix", "result": found}


def ask(folder: Path, server: Server) -> list[Answer]:
    return verify(folder, "", now=0.0, ask=server)


def test_data_is_a_number(tmp_path: Path) -> None:
    """A series that is NaN throughout is no data."""
    board(tmp_path, panel("rl_step", "S"), panel("rl_learning_rate", "L"))
    (step, rate) = ask(tmp_path, Server(rl_step="1", rl_learning_rate="NaN"))
    assert (step.ok, step.series) == (True, 1)
    assert (rate.ok, rate.series, rate.excuse) == (False, 0, "")


def test_an_excuse_needs_a_series_that_cannot_be(tmp_path: Path) -> None:
    """Without a GPU the GPU's panel may be empty; with one, and for a series that always exists, it may not."""
    board(tmp_path, panel("gpu_up", "G"), panel("fusewire_attempt", "F"))
    gpu, attempt = ask(tmp_path, Server())
    assert (gpu.ok, gpu.excuse) == (True, "no GPU (gpu_up)")
    assert not attempt.ok
    assert not ask(tmp_path, Server(gpu_up="NaN"))[0].ok


def test_a_refused_query_is_an_error(tmp_path: Path) -> None:
    """What Prometheus refuses is said with its words."""
    board(tmp_path, panel("sum(", "S"))
    (answer,) = ask(tmp_path, Server())
    assert not answer.ok
    assert "bad query" in str(answer)


def test_variables_are_what_grafana_would_offer(tmp_path: Path) -> None:
    """One value for a single choice, all for a multiple one, and a panel for each of a repeated one."""
    variables = [
        {"name": "run", "type": "query", "query": "label_values(up, run)"},
        {"name": "attempt", "type": "query", "query": "label_values(up, attempt)", "multi": True},
        {"name": "hours", "type": "textbox", "query": "8"},
    ]
    repeated = panel("$attempt", "$attempt", repeat="attempt")
    board(tmp_path, panel("$run/$attempt/$hours/${run}", "S"), repeated, variables=variables)
    server = Server()
    answers = verify(tmp_path, "", now=0.0, ask=_lenient(server))
    assert [answer.expr for answer in answers] == ["b/b|a/8/b", "b", "a"]


def _lenient(server: Server) -> Any:
    def answer(path: str, parameters: Mapping[str, str]) -> Any:
        if path == "/api/v1/query_range":
            return {"resultType": "scalar", "result": [0, "1"]}
        return server(path, parameters)

    return answer


def test_panels_in_collapsed_rows_are_asked_too(tmp_path: Path) -> None:
    """A row that hides panels hides no faults."""
    board(tmp_path, {"type": "row", "title": "R", "panels": [panel("rl_step", "S")]})
    assert [answer.panel for answer in ask(tmp_path, Server())] == ["S"]


def test_empty_panels() -> None:
    """A panel is empty when none of its queries has data."""
    full = Answer(dashboard="d", panel="p", ref="A", expr="x", series=1)
    none = Answer(dashboard="d", panel="p", ref="B", expr="y", excuse="no GPU")
    alone = Answer(dashboard="d", panel="q", ref="A", expr="y", excuse="no GPU")
    assert empty_panels([full, none, alone]) == {"d / q": "no GPU"}


def test_unknown_variables_are_an_error() -> None:
    """A variable that the dashboard does not declare is a fault of the dashboard; `$1` is none."""
    assert fill("$run $1", {"run": "a"}) == "a $1"
    with pytest.raises(KeyError):
        fill("$other", {"run": "a"})
