"""The packs against promtool: every rule parses, and every alert keeps what its unit tests say."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
RULES = HERE.parent.parent / "rules"

_LAST = re.compile(r"last_over_time\((\w+(?:\{[^}]*\})?)\[\w+\]((?: offset \w+)?)\)")
_FOR_DASHBOARDS = (":limit", ":notice")


def promtool_test(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)


def wrapped() -> Iterator[tuple[Path, Path, str, int]]:
    """Test file, rule file, name and place of each rule that looks back over a missed scrape."""
    for test in sorted(HERE.glob("*.test.yaml")):
        for path in yaml.safe_load(test.read_text())["rule_files"]:
            rules = (HERE / path).resolve()
            every = [rule for group in yaml.safe_load(rules.read_text())["groups"] for rule in group["rules"]]
            for place, rule in enumerate(every):
                name = rule.get("alert") or rule["record"]
                if _LAST.search(rule["expr"]) and not name.endswith(_FOR_DASHBOARDS):
                    yield test, rules, name, place


@pytest.mark.parametrize("path", sorted(RULES.rglob("*.yaml")), ids=lambda path: path.name)
def test_promtool_accepts_the_rules(path: Path) -> None:
    """Every rule file parses, without duplicate rules."""
    done = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", sorted(HERE.glob("*.test.yaml")), ids=lambda path: path.name)
def test_promtool_unit_tests_pass(path: Path) -> None:
    """The unit tests of the alerts hold on the real rule engine."""
    done = promtool_test(path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("test", "rules", "name", "place"),
    [pytest.param(*one, id=f"{one[1].name}-{one[3]}-{one[2]}") for one in wrapped()],
)
def test_a_rule_that_reads_a_gauge_as_it_is_fails_its_unit_tests(
    tmp_path: Path, test: Path, rules: Path, name: str, place: int
) -> None:
    """Without its ``last_over_time`` each rule that an alert depends on breaks a test."""
    document: dict[str, Any] = yaml.safe_load(rules.read_text())
    rule = [rule for group in document["groups"] for rule in group["rules"]][place]
    rule["expr"] = _LAST.sub(r"\1\2", rule["expr"])
    stripped = tmp_path / rules.name
    stripped.write_text(yaml.safe_dump(document))
    unit: dict[str, Any] = yaml.safe_load(test.read_text())
    files = [(HERE / path).resolve() for path in unit["rule_files"]]
    unit["rule_files"] = [str(stripped if path == rules else path) for path in files]
    unit["tests"] = [one for one in unit["tests"] if name in str(one) or "next one fails" in one["name"]]
    copy = tmp_path / test.name
    copy.write_text(yaml.safe_dump(unit))
    done = promtool_test(copy)
    assert "FAILED" in done.stdout + done.stderr
    assert "exp:" in done.stdout + done.stderr
