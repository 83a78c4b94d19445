"""What of a run's configuration its decisions depend on; the journal holds it in ``RunDeclared``."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fusewire_webhook.errors import JournalError
from fusewire_webhook.settings.config import RunConfig

PROBATION_WATCHES = 20
"""Default probation allowance, in multiples of ``watch_steps``."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Budgets and responses of one run. The fields are those of ``RunConfig``, ``retry`` and ``snapshots``."""

    mode: Literal["act", "observe"] = "act"
    seed: int = 0
    lr_factor: float = 0.5
    lr_scale_floor: float = 0.125
    new_seed: bool = True
    divergences_per_incident: int = 3
    divergences_per_run: int = 10
    infrastructure_failures: int = 5
    backoff_seconds: float = 1.0
    backoff_max_seconds: float = 300.0
    settle_seconds: float = 5.0
    watch_steps: int = 100
    probation_steps: int = 2000
    without_stable: Literal["scratch", "lock"] = "scratch"
    success_exit_codes: tuple[int, ...] = ()
    fatal_exit_codes: tuple[int, ...] = ()
    purge: bool = False
    """A purge hook is configured: it runs after each rollback."""

    @classmethod
    def of(cls, config: RunConfig) -> Policy:
        """The policy of a configured run."""
        retry, watch = config.retry, config.snapshots.watch_steps
        return cls(
            mode=config.mode,
            seed=config.seed,
            lr_factor=retry.lr_factor,
            lr_scale_floor=retry.lr_scale_floor,
            new_seed=retry.new_seed,
            divergences_per_incident=retry.divergences_per_incident,
            divergences_per_run=retry.divergences_per_run,
            infrastructure_failures=retry.infrastructure_failures,
            backoff_seconds=retry.backoff_seconds,
            backoff_max_seconds=retry.backoff_max_seconds,
            settle_seconds=retry.settle_seconds,
            watch_steps=watch,
            probation_steps=PROBATION_WATCHES * watch if retry.probation_steps is None else retry.probation_steps,
            without_stable=retry.without_stable,
            success_exit_codes=retry.success_exit_codes,
            fatal_exit_codes=retry.fatal_exit_codes,
            purge=bool(config.purge_command),
        )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Policy:
        """The policy that a journal holds; fields that it does not have keep their defaults.

        Raises:
            JournalError: a value is not usable.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
            if name in known
        }
        try:
            return cls(**given)
        except TypeError as error:
            raise JournalError(f"the journaled policy is not usable: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return dataclasses.asdict(self)

    def attempt_seed(self, attempt: int) -> int:
        """Seed of an attempt with new randomness: a stable hash of run seed and attempt, 0 to 2³¹ - 1."""
        digest = hashlib.blake2b(f"{self.seed}:{attempt}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1

    def lowered(self, lr_scale: float) -> float:
        """The learning-rate scale after one more divergence; never raised by the floor."""
        return min(lr_scale, max(self.lr_scale_floor, lr_scale * self.lr_factor))

    def at_floor(self, lr_scale: float) -> bool:
        """Is there no smaller learning rate left to try? Never where divergences keep the rate."""
        return self.lr_factor < 1 and self.lr_scale_floor < 1 and lr_scale <= self.lr_scale_floor

    def backoff(self, restarts_in_a_row: int) -> float:
        """Seconds to wait before the n-th restart in a row (n from 1): doubles up to the maximum."""
        exponent = min(max(restarts_in_a_row - 1, 0), 60)
        return float(min(self.backoff_seconds * 2**exponent, self.backoff_max_seconds))
