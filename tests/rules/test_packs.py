"""What the names of rule packs stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusewire_webhook.cli import main
from fusewire_webhook.settings.packs import folder, rule_files
from fusewire_webhook.settings.rulecheck import check_rules
from fusewire_webhook.stack.binaries import resolve_rule_files


def names(*entries: str) -> list[str]:
    return [Path(file).name for file in resolve_rule_files(rule_files(entries))]


def test_the_literal_preset_stands_in_place_of_the_divergence_rules_only() -> None:
    """One line chooses the textbook thresholds and keeps the stall trip, the watchdog and the gate's rules."""
    default = names("default")
    assert "divergence.rules.yaml" in default
    assert names("preset:literal") == [
        *(name for name in default if name != "divergence.rules.yaml"),
        "literal.rules.yaml",
    ]
    assert names() == default


def test_the_literal_preset_is_fit_as_it_is_loaded() -> None:
    """Nothing is wrong with the textbook rules and what goes with them, loaded together."""
    assert check_rules([Path(file) for file in resolve_rule_files(rule_files(["preset:literal"]))]) == []


@pytest.mark.parametrize(
    ("rules", "complaints"),
    [("preset:literal", 0), ("preset:demo", 0), ("default", 0), (str(folder() / "divergence.rules.yaml"), 1)],
)
def test_check_misses_a_watchdog(
    rules: str, complaints: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rules without the watchdog would leave the watch degraded, which is said before anything starts."""
    config = tmp_path / "fusewire.yml"
    config.write_text(f"prometheus: {{rule_files: ['{rules}']}}\nruns: {{a: {{command: ['true']}}}}\n")
    main(["check", "--config", str(config)])
    assert capsys.readouterr().out.count("prometheus.rule_files: no rule Watchdog is in them") == complaints
