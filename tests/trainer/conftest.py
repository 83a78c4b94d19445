"""How the trainer computes in these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Torch uses one thread, as ``python -m fusewire_trainer.ppo`` does.

    With a thread a core, every small operation waits for a core that another test has: eight times as slow.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
