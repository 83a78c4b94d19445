"""Declared phases: a pause of the updates that is not a stall."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase that the trainer is in."""

    name: str
    started: float
    """Seconds of the monotonic clock."""
    expected_seconds: float
    """How long it was said to take; 0: unsaid."""


class Phases:
    """The phases entered now, and the names of all that ever were. Phases may be nested."""

    def __init__(self) -> None:
        self._stack: tuple[Phase, ...] = ()
        self._names: tuple[str, ...] = ()

    def enter(self, phase: Phase) -> None:
        """The trainer begins a phase."""
        if phase.name not in self._names:
            self._names = (*self._names, phase.name)
        self._stack = (*self._stack, phase)

    def leave(self, phase: Phase) -> None:
        """It ends one."""
        self._stack = tuple(entered for entered in self._stack if entered is not phase)

    @property
    def present(self) -> Phase | None:
        """The innermost phase; None outside."""
        stack = self._stack
        return stack[-1] if stack else None

    @property
    def paused_at(self) -> float | None:
        """When the outermost present phase began; None outside."""
        stack = self._stack
        return stack[0].started if stack else None

    def states(self) -> dict[str, bool]:
        """For each name that was ever entered, whether the trainer is in it."""
        present = {phase.name for phase in self._stack}
        return {name: name in present for name in self._names}
