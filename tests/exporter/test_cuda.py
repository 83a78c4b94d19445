"""CUDA scalars, on a fake of the few calls of torch that are used: no GPU was at hand for these tests.

The fake keeps CUDA's rules: a copy shows its values only once its event has been reached, reading earlier shows
garbage; recording, copying or polling during a capture raises, as does any call that would synchronise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import fusewire

from .conftest import scrape

Attach = Callable[..., fusewire.Run]

GARBAGE = -12345.0


class Device:
    """A GPU whose work is done when the test says so."""

    def __init__(self) -> None:
        self.capturing = False
        self.done = 0
        self.queued = 0
        self.copies = 0
        self.polls = 0

    def finish(self) -> None:
        self.done = self.queued


class Tensor:
    """A scalar on the GPU; anything that would wait for it raises."""

    dtype = "float32"

    def __init__(self, value: float) -> None:
        self.value = value
        self.device = CUDA

    def numel(self) -> int:
        return 1

    def detach(self) -> Tensor:
        return self

    def reshape(self, shape: tuple[int, ...]) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return Tensor(self.value)

    def __radd__(self, other: Any) -> Tensor:
        return self

    def __add__(self, other: Any) -> Tensor:
        return self

    def synchronises(self, *arguments: Any) -> Any:
        raise AssertionError("this waits for the GPU")

    item = tolist = __float__ = __bool__ = __int__ = __index__ = cpu = synchronises  # type: ignore[assignment]


class CudaDevice:
    type = "cuda"


CUDA = CudaDevice()


class Pinned:
    def __init__(self, device: Device, size: int) -> None:
        self._device = device
        self._size = size
        self._arrives = 0
        self._values: list[float] = []

    def copy_(self, stacked: list[Tensor], *, non_blocking: bool) -> None:
        assert non_blocking
        assert not self._device.capturing
        self._device.queued += 1
        self._device.copies += 1
        self._arrives = self._device.queued
        self._values = [tensor.value for tensor in stacked]

    def tolist(self) -> list[float]:
        return self._values if self._device.done >= self._arrives else [GARBAGE] * self._size


class Stack(list[Tensor]):
    dtype = "float32"


def fake_torch(device: Device) -> Any:
    class Event:
        def record(self, stream: Any) -> None:
            assert not device.capturing
            self.at = device.queued

        def query(self) -> bool:
            assert not device.capturing
            device.polls += 1
            return device.done >= self.at

    def current_stream(of: Any) -> str:
        return "stream"

    def empty(size: int, *, dtype: str, pin_memory: bool) -> Pinned:
        assert pin_memory
        return Pinned(device, size)

    cuda = SimpleNamespace(
        is_current_stream_capturing=lambda: device.capturing,
        is_initialized=lambda: False,
        current_stream=current_stream,
        Event=Event,
    )
    return SimpleNamespace(Tensor=Tensor, cuda=cuda, stack=Stack, empty=empty)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    device = Device()
    monkeypatch.setitem(sys.modules, "torch", fake_torch(device))
    yield device
    device.capturing = False
    device.finish()


def test_values_come_back_later(attach: Attach, device: Device) -> None:
    """One copy per step; the values are shown once the event is reached, never garbage."""
    run = attach()
    run.step(0, approx_kl=Tensor(0.5), value_loss=Tensor(2.0), grad_norm=1.0)
    assert device.copies == 1
    assert "rl_approx_kl" not in scrape(run)
    device.finish()
    assert not run.should_stop  # any call from the training thread polls
    seen = scrape(run)
    assert (seen["rl_approx_kl"], seen["rl_value_loss"], seen["rl_grad_norm"]) == (0.5, 2.0, 1.0)


def test_the_order_is_kept(attach: Attach, device: Device) -> None:
    """A step of plain floats waits behind one that is still on its way."""
    run = attach()
    for step, value in enumerate((Tensor(9.0), 1.0, Tensor(3.0))):
        run.step(step, approx_kl=value)
    assert scrape(run)["rl_updates_total"] == 0
    device.finish()
    run.step(3, approx_kl=2.0)
    seen = scrape(run)
    assert seen["rl_approx_kl"] == 2.0
    assert seen['rl_approx_kl_run_min{steps="3"}'] == 1.0
    assert seen["rl_updates_total"] == 4


def test_a_scrape_never_polls(attach: Attach, device: Device) -> None:
    """Events belong to the training thread; a scrape touches host memory only."""
    run = attach()
    run.step(0, approx_kl=Tensor(0.5))
    polls = device.polls
    scrape(run)
    assert device.polls == polls


def test_during_a_capture(attach: Attach, device: Device) -> None:
    """Nothing touches CUDA; values that are captured do not exist and are counted, floats go on."""
    run = attach()
    run.step(0, approx_kl=Tensor(0.5))
    device.finish()
    device.capturing = True
    run.step(1, approx_kl=Tensor(7.0), grad_norm=2.0)
    assert not run.should_stop
    device.capturing = False
    run.step(2, approx_kl=0.25)
    seen = scrape(run)
    assert seen["rl_updates_total"] == 3
    assert seen["rl_grad_norm"] == 2.0
    assert seen['rl_approx_kl_run_min{steps="1"}'] == 0.5
    assert seen['fusewire_exporter_errors_total{where="cuda"}'] == 1


def test_minibatches(attach: Attach, device: Device) -> None:
    """CUDA scalars of minibatches are brought back with the step's copy, and folded on the host."""
    run = attach()
    for value in (1.0, 2.0, 6.0):
        run.minibatch(approx_kl=Tensor(value))
    run.step(0, value_loss=Tensor(4.0))
    assert device.copies == 1
    device.finish()
    run.step(1)
    seen = scrape(run)
    assert (seen["rl_approx_kl"], seen["rl_approx_kl_minibatch_max"], seen["rl_value_loss"]) == (3.0, 6.0, 4.0)


def test_a_gpu_that_never_answers(attach: Attach, device: Device) -> None:
    """Memory is bounded: the oldest rows go on without their values, which is counted."""
    run = attach()
    for step in range(1500):
        run.step(step, approx_kl=Tensor(1.0), grad_norm=2.0)
    seen = scrape(run)
    assert seen["rl_updates_total"] == 1500 - 1024
    assert seen["rl_grad_norm"] == 2.0
    assert seen['fusewire_exporter_errors_total{where="cuda"}'] == 1500 - 1024
    device.finish()
    run.step(1500)


def test_the_end_waits_for_the_values(attach: Attach, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end the last values are taken in if they come soon."""
    run = attach()
    run.step(0, approx_kl=Tensor(0.5))
    device.finish()
    run.complete()
    assert scrape(run)["rl_approx_kl"] == 0.5
