"""Instrumentation never raises into its host: an error becomes a counter and one warning per kind."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast

logger = logging.getLogger("fusewire")

PLACES: tuple[str, ...] = (
    "step", "minibatch", "signal", "value", "cuda", "phase", "snapshot", "apply_lr", "complete",
    "exporter", "collector", "last_values", "resume", "files",
)  # fmt: skip
"""Label values of ``fusewire_exporter_errors_total``, all exported at 0 from the start."""

P = ParamSpec("P")
T = TypeVar("T")


class Errors:
    """Counts errors by place, and warns once for each place and kind of error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(PLACES, 0)
        self._warned: set[tuple[str, str]] = set()

    @property
    def counts(self) -> dict[str, int]:
        """Errors by place so far."""
        with self._lock:
            return dict(self._counts)

    def note(self, where: str, error: BaseException | str, *, kind: str = "") -> None:
        """Count an error; log it if it is the first of its kind (by default its type, or its text)."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        key = (where, kind or (error if isinstance(error, str) else type(error).__name__))
        with self._lock:
            self._counts[where] += 1
            if key in self._warned or len(self._warned) >= 1000:
                return
            self._warned.add(key)
        trace = error if isinstance(error, BaseException) else None
        logger.warning("fusewire (%s): %s; training goes on; more are only counted", where, text, exc_info=trace)


class HasErrors(Protocol):
    """What :func:`guarded` needs of its host."""

    @property
    def errors(self) -> Errors: ...


H = TypeVar("H", bound=HasErrors)


def guarded(
    where: str, default: Callable[[], T]
) -> Callable[[Callable[Concatenate[H, P], T]], Callable[Concatenate[H, P], T]]:
    """Make a method return ``default()`` and note the error instead of raising an ``Exception``."""

    def wrap(method: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[H, P], T]:
        @functools.wraps(method)
        def call(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                self.errors.note(where, error)
                return default()

        return cast(Callable[Concatenate[H, P], T], call)

    return wrap
