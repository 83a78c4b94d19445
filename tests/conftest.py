"""What holds for all tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine, not about the code.
settings.register_profile("fusewire", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fusewire")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for unix sockets, whose paths may have 107 bytes: pytest's own can be longer."""
    with tempfile.TemporaryDirectory(prefix="fw-", dir="/tmp") as name:
        yield Path(name)
