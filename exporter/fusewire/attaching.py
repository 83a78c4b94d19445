"""``fusewire.attach()``: from the environment to a running :class:`fusewire.Run`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fusewire.attempt import ENVIRONMENT_PREFIX, AttemptParameters
from fusewire.errors import AttemptError
from fusewire.run import Run
from fusewire.signals import CATALOGUE, Signal

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def attach(
    *,
    name: str | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    port: int | None = None,
    signals: Sequence[Signal] = (),
    rank: int | None = None,
    role: str | None = None,
    world_size: int | None = None,
    environ: Mapping[str, str] | None = None,
    registry: CollectorRegistry | None = None,
    gpus: Literal["visible", "all"] = "visible",
    handle_signals: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Run:
    """Attach fusewire to this process, which is going to train.

    Under the supervisor everything comes from ``FUSEWIRE_*``; standalone, the defaults of
    :class:`fusewire.AttemptParameters` hold (exporter on any free port of 127.0.0.1).

    Args:
        name: name of the run; by default as told, or ``standalone``.
        run_dir: folder of the run; by default as told. Without one there are no snapshots.
        port: port of the exporter; by default as told, or any free one.
        signals: further signals that :meth:`Run.step` will report.
        rank: of several processes that train together, which this is; by default ``RANK`` of the environment.
            Rank 0 reports; others do only when they give their ``rank`` or ``role`` here.
        role: what this process is where it is not the trainer, such as ``rollout``.
        world_size: processes that write a snapshot together; by default ``WORLD_SIZE`` of the environment, or 1.
        environ: instead of ``os.environ``.
        registry: where to register the collectors; by default one of our own.
        gpus: ``visible``: those that ``CUDA_VISIBLE_DEVICES`` names; ``all``: every one that NVML shows.
        handle_signals: chain a handler for SIGTERM (from the main thread only).
        clock: seconds, monotonic.

    Raises:
        AttemptError: the parameters cannot be used.
        RunNameError: the name cannot be used.
        ValueError: a signal is declared twice.
    """
    environment = dict(os.environ if environ is None else environ)
    if run_dir is not None:
        environment[f"{ENVIRONMENT_PREFIX}RUN_DIR"] = str(Path(run_dir).absolute())
    parameters = AttemptParameters.load(environment)
    if name is not None:
        parameters = replace(parameters, run=name)
    own_rank = _number(environment, "RANK", 0) if rank is None else rank
    main = own_rank == 0 and role is None
    run = Run(
        parameters,
        signals=_declared(signals),
        rank=own_rank,
        role=role,
        world_size=_number(environment, "WORLD_SIZE", 1) if world_size is None else world_size,
        serves=main or rank is not None or role is not None,
        registry=registry,
        gpus=gpus,
        clock=clock,
    )
    assigned = parameters.exporter_port if main else 0
    run.start(parameters.exporter_host, assigned if port is None else port, handle_signals=handle_signals)
    return run


def _declared(signals: Sequence[Signal]) -> tuple[Signal, ...]:
    every = (*CATALOGUE, *signals)
    names = [signal.name for signal in every]
    for signal in signals:
        if names.count(signal.name) > 1:
            raise ValueError(f"signal {signal.name!r} is declared twice: take another name")
    return every


def _number(environ: Mapping[str, str], variable: str, default: int) -> int:
    text = environ.get(variable, "")
    try:
        return int(text) if text else default
    except ValueError as error:
        raise AttemptError(f"{variable}={text!r} is not a number") from error
