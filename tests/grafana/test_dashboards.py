"""The committed dashboards: current, consistent, and asking only for what exists."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fusewire.metrics import sample_names
from fusewire_webhook.web.metrics import Metrics
from grafana import build, queries
from grafana.verify import FOLDER, fill, panels, series_names

ROOT = Path(__file__).parents[2]
NAMES = sorted(build.DASHBOARDS)
VALUES = {
    "run": "demo", "attempt": ".+", "hours": "8", "signal": "policy_loss", "console": "http://console",
    "runbooks": "/runbooks", "__interval": "15s", "__rate_interval": "1m", "__range": "1h", "__range_s": "3600",
}  # fmt: skip
UNITS = {
    "none", "short", "locale", "percentunit", "s", "h", "bytes", "celsius", "watt", "joule", "ops", "sci",
    "suffix: updates/s",
}  # fmt: skip
"""Units of Grafana that the dashboards use."""
FROM_SERVERS = {
    "ALERTS", "ALERTS_FOR_STATE", "up", "scrape_duration_seconds",
    "prometheus_rule_evaluations_total", "prometheus_rule_evaluation_failures_total",
    "prometheus_rule_group_iterations_missed_total", "prometheus_rule_group_last_duration_seconds",
    "prometheus_rule_group_interval_seconds", "prometheus_notifications_dropped_total",
    "prometheus_notifications_errors_total",
    "alertmanager_notifications_total", "alertmanager_notifications_failed_total", "alertmanager_silences",
    "alertmanager_alerts",
}  # fmt: skip


@pytest.fixture(params=NAMES)
def board(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A committed dashboard."""
    return json.loads((FOLDER / f"{request.param}.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def expressions(board: dict[str, Any]) -> Iterator[str]:
    """Every PromQL expression of a dashboard, variables filled in."""
    for panel in panels(board):
        yield from (fill(target["expr"], VALUES) for target in panel["targets"])
    yield from (fill(mark["target"]["expr"], VALUES) for mark in board["annotations"].get("list", []))
    for variable in board["templating"]["list"]:
        asked = re.fullmatch(r"query_result\((.*)\)|label_values\((.*), \w+\)", str(variable.get("query")))
        if asked:
            yield fill(asked[1] or asked[2], VALUES)


def unfolded(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Everything that has a place in the grid once all rows are open."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", [])


def recorded() -> set[str]:
    """Names that the recording rules of the default pack make."""
    groups = itertools.chain.from_iterable(
        yaml.safe_load(path.read_text(encoding="utf-8"))["groups"] for path in queries.RULES.glob("*.rules.yaml")
    )
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


def webhook_series() -> set[str]:
    """Names that the webhook exports."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return {
        family.name + suffix
        for family in Metrics().registry.collect()
        for suffix in suffixes.get(family.type, ("",))
    }


def test_the_committed_dashboards_are_current() -> None:
    """Building them anew gives exactly what is committed, and nothing else lies in the folder."""
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()} == build.texts(), (
        "run: python -m grafana.build"
    )


def test_every_expression_reads_series_that_exist(board: dict[str, Any]) -> None:
    """Every expression parses as PromQL and names only series that some part of the stack makes."""
    known = set(sample_names()) | webhook_series() | recorded() | FROM_SERVERS
    for expr in expressions(board):
        assert series_names(expr) <= known, expr


def test_every_panel_says_what_it_shows(board: dict[str, Any]) -> None:
    """Every panel has a title, a description, a known unit, queries, and its data source by the variable."""
    for panel in panels(board):
        about = panel["title"]
        assert about
        assert panel["description"].endswith("."), about
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, about
        assert panel["targets"], about
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEFGHIJ"[: len(panel["targets"])])
        for holder in (panel, *panel["targets"]):
            assert holder["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, about


def test_sums_over_the_whole_range_are_asked_once(board: dict[str, Any]) -> None:
    """A query over `$__range` is instant: as a graph it would be summed up anew for every point."""
    for panel in panels(board):
        for target in panel["targets"]:
            assert "$__range" not in target["expr"] or target["instant"], panel["title"]


def test_titles_are_unique(board: dict[str, Any]) -> None:
    """No two panels of a dashboard share a title or an identity."""
    titles = [panel["title"] for panel in panels(board)]
    assert len(set(titles)) == len(titles)
    identities = [panel["id"] for panel in unfolded(board)]
    assert len(set(identities)) == len(identities)


def test_panels_do_not_overlap(board: dict[str, Any]) -> None:
    """No cell of the grid is covered twice, and nothing is wider than the grid."""
    covered: dict[tuple[int, int], str] = {}
    for panel in unfolded(board):
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for cell in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        ):
            assert cell not in covered, f"{panel['title']} lies on {covered.get(cell)}"
            covered[cell] = panel["title"]


def test_lines_of_panels_are_full(board: dict[str, Any]) -> None:
    """Every line of the grid is covered from left to right: no holes, save beside a repeated panel."""
    lines: dict[int, int] = {}
    repeated = {panel["gridPos"]["y"] for panel in unfolded(board) if panel.get("repeat")}
    for panel in unfolded(board):
        lines[panel["gridPos"]["y"]] = lines.get(panel["gridPos"]["y"], 0) + panel["gridPos"]["w"]
    assert {width for y, width in lines.items() if y not in repeated} == {24}


def test_what_needs_a_gpu_is_folded_away() -> None:
    """On a machine without a GPU no graph of the GPU dashboard stands there empty."""
    gpu = json.loads((FOLDER / "gpu.json").read_text(encoding="utf-8"))
    graphs = [panel for panel in gpu["panels"] if panel["type"] == "timeseries"]
    assert graphs
    for panel in graphs:
        names = {name for target in panel["targets"] for name in series_names(fill(target["expr"], VALUES))}
        assert not any(name.startswith(("gpu_", "torch_cuda_")) for name in names), panel["title"]


def test_colours_belong_to_the_theme(board: dict[str, Any]) -> None:
    """No colour is a number: names follow the theme, so that dark and light both read well."""
    text = json.dumps(board)
    assert not re.search(r'"#[0-9a-fA-F]{3,8}"|rgba?\(', text)


def test_the_state_of_the_breaker_has_a_word_for_every_state() -> None:
    """The numbers of states that the queries make are those that the panels name."""
    fleet = json.loads((FOLDER / "fleet.json").read_text(encoding="utf-8"))
    (states,) = (panel for panel in panels(fleet) if panel["type"] == "state-timeline")
    words = states["fieldConfig"]["defaults"]["mappings"][0]["options"]
    assert [words[str(number)]["text"] for number in range(len(queries.STATES))] == [
        state.upper().replace("_", "-") for state in queries.STATES
    ]


def test_dashboards_link_to_each_other_and_to_runbooks(board: dict[str, Any]) -> None:
    """Each has the list of its siblings (variables and time are kept), the console and the runbooks."""
    kinds = {link["title"]: link for link in board["links"]}
    assert kinds["fusewire"]["type"] == "dashboards"
    assert kinds["fusewire"]["tags"] == board["tags"] == ["fusewire"]
    assert kinds["fusewire"]["includeVars"]
    assert kinds["fusewire"]["keepTime"]
    assert kinds["Console"]["url"] == "${console}"
    assert kinds["Runbooks"]["url"] == "${runbooks}/README.md"
    offered = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert {"datasource", "console", "runbooks", "run"} <= offered.keys()


def test_links_in_tables_lead_to_dashboards_that_exist() -> None:
    """The target of every link into Grafana is the identity of a committed dashboard."""
    boards = [json.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.json")]
    identities = {board["uid"] for board in boards}
    targets = set(re.findall(r"/d/([\w-]+)", json.dumps(boards)))
    assert targets
    assert targets <= identities


def test_the_alert_table_leads_to_the_runbook_of_every_alert() -> None:
    """The link is made of the alert's name: a runbook by that name exists for every alert of the default pack."""
    alerting = (FOLDER / "alerting.json").read_text(encoding="utf-8")
    assert "${runbooks}/${__data.fields.alertname}.md" in alerting
    alerts = {
        rule["alert"]
        for path in queries.RULES.glob("*.rules.yaml")
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    assert alerts
    assert {name for name in alerts if not (ROOT / "docs" / "runbooks" / f"{name}.md").is_file()} == set()


def test_the_list_of_runbooks_is_complete() -> None:
    """The file that the dashboards lead to (Grafana lists no folders) names every runbook, and nothing else."""
    folder = ROOT / "docs" / "runbooks"
    linked = re.findall(r"\[(\w+)\]\((\w+)\.md\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert all(text == target for text, target in linked)
    assert sorted(target for _, target in linked) == sorted(
        path.stem for path in folder.glob("*.md") if path.name != "README.md"
    )


def test_the_first_screen_of_a_laptop_says_how_it_is(board: dict[str, Any]) -> None:
    """What stands in the first 18 lines of the grid (900 pixels less Grafana's own bars) includes the figures."""
    assert {panel["gridPos"]["y"] for panel in board["panels"] if panel["type"] == "stat"} & set(range(5))
    assert len([panel for panel in board["panels"] if panel["gridPos"]["y"] < 18]) >= 6


def test_numbers_of_rules_are_read_from_the_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another number in a rule is another number in the dashboard."""
    rule = {"alert": "Full", "expr": "10 * last_over_time(a[15s]) / last_over_time(b[15s]) > 0.5"}
    text = yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]})
    (tmp_path / "own.rules.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(queries, "RULES", tmp_path)
    queries.alert_expressions.cache_clear()
    try:
        assert queries.alert_number("Full") == 0.5
        assert queries.alert_value("Full") == "10 * last_over_time(a[15s]) / last_over_time(b[15s])"
    finally:
        queries.alert_expressions.cache_clear()


def test_addresses_can_be_chosen(tmp_path: Path) -> None:
    """The folder of the runbooks and the console's address are arguments of the build."""
    given = ["--out", str(tmp_path), "--runbooks", "https://wiki/books/", "--console", "https://fuse"]
    assert build.main(given) == 0
    board = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    said = {one["name"]: one.get("query") for one in board["templating"]["list"]}
    assert (said["runbooks"], said["console"]) == ("https://wiki/books", "https://fuse")


def test_provisioning_is_complete() -> None:
    """Data source and dashboards are provisioned by files that say where they are."""
    folder = ROOT / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    assert source["isDefault"]
    (provider,) = yaml.safe_load((folder / "dashboards" / "fusewire.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/etc/grafana/dashboards"
