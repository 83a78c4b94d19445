"""The packs against promtool: every rule parses, and every alert keeps what its unit tests say."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RULES = HERE.parent.parent / "rules"


@pytest.mark.parametrize("path", sorted(RULES.rglob("*.yaml")), ids=lambda path: path.name)
def test_promtool_accepts_the_rules(path: Path) -> None:
    """Every rule file parses, without duplicate rules."""
    done = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", sorted(HERE.glob("*.test.yaml")), ids=lambda path: path.name)
def test_promtool_unit_tests_pass(path: Path) -> None:
    """The unit tests of the alerts hold on the real rule engine."""
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
