"""What others may know of a run: one frozen, JSON-able picture of its state, and its scrape target."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from fusewire_webhook.breaker.procedures import next_start
from fusewire_webhook.breaker.state import RunState


@dataclass(frozen=True, kw_only=True)
class Target:
    """One scrape target of ``/sd``: an attempt's exporter."""

    run: str
    attempt: int
    algorithm: str
    host: str
    port: int
    window_seconds: float


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run as console, API, CLI, metrics and gate see it."""

    run: str
    seq: int
    """Journal entry up to which this picture is folded."""
    state: str
    """closed, open, half_open, locked or completed."""
    mode: str
    """act or observe."""
    algorithm: str
    paused: bool
    pauses: tuple[dict[str, str], ...]
    """Who holds the automatic actions, and why: ``{"source", "who", "why", "silence"}``."""
    lifted: tuple[str, ...]
    """Ids of the silences whose pause a person has ended: they pause the run no more."""
    shut_down: bool
    """The supervisor ended the trainer (Ctrl-C); the next start of the webhook continues the run."""
    next_start: str
    """With ``shut_down``: what that start does, in words; empty otherwise."""
    finished: bool
    """Nothing happens any more without a person or a new start: locked, completed or shut down."""
    decision: str
    """The last decision, in words."""
    reason: str
    """Why the run is locked; empty otherwise."""
    attempt: int
    """Number of the newest attempt; -1 before the first."""
    live: bool
    """Its process was started and its end is not confirmed."""
    handle: dict[str, Any] | None
    tripped: bool
    """The attempt has used its one trip: further alerts of it are evidence."""
    held_trip: str
    """A trip that came while paused, in words; acted on only if it is reported firing after the resume."""
    held: tuple[str, ...]
    """All that did, one per alert, in words."""
    dismissed: tuple[dict[str, Any], ...]
    """Trip alerts of the attempt that a person found harmless: ``{"alert", "until", "began"}``."""
    step: int
    """Furthest step that is known of the attempt."""
    journaled_step: int
    """Furthest one that the journal has; it has any that a decision rests on, and each after a minute or so."""
    watch: dict[str, Any] | None
    """Whether the rules see the attempt: ``{"state", "since", "step_at"}``, the state being starting, watched,
    unattached or unscraped; None: no attempt lives, or nobody has looked yet."""
    lr_scale: float
    seed: int
    rng: str
    resumed_from: str | None
    resumed_step: int
    active: str | None
    promoted: tuple[dict[str, Any], ...]
    """Promoted snapshots, oldest first: ``{"name", "step", "attempt"}``."""
    unpromoted: tuple[dict[str, Any], ...]
    """Snapshots that were seen and are neither promoted nor gone, oldest first: ``{"name", "step", "attempt",
    "rules", "rejected", "reasons", "final"}``."""
    incident: dict[str, Any] | None
    """The open incident: ``{"number", "divergences", "failed", "watched"}``."""
    divergences: int
    """In the open incident."""
    divergences_run: int
    """In the whole run, since a person last reset it."""
    infrastructure_failures: int
    """In a row, without a promoted snapshot past the failing step."""
    furthest_trip: int
    """Furthest step that ever tripped; the incident ends ``watch_steps`` past it."""
    incident_ends_at: int | None
    """A promoted snapshot at this step or further ends the incident."""
    procedure: dict[str, Any] | None
    """The action in flight: ``{"cause", "stages", "reason", "target", …}``."""
    trips: dict[str, int]
    """Trips so far by failure class."""
    would_have_tripped: dict[str, int]
    """Observe mode: the alerts that would have tripped the run, each with the number of its attempts."""
    restarts: dict[str, int]
    """Restarts so far by failure class."""
    lockouts: int

    def to_json(self) -> dict[str, Any]:
        """The fields, which are JSON values already: a deep copy of a thousand runs takes 50 ms."""
        return dict(vars(self))


NOT_JOURNALED = frozenset({"algorithm", "step", "watch"})
"""Fields of a view that a folded journal does not give: the configuration's, and what only the memory holds."""


def held_back(view: RunView, *, attempt: int, step: int) -> str:
    """Why the run, as it stands, promotes nothing of this attempt and step; empty: its state does not hold it."""
    if view.shut_down:
        return "state: the run is shut down"
    if view.state not in {"closed", "half_open", "completed"}:
        return f"state: the run is {view.state}"
    if attempt != view.attempt:
        return "attempt: it has ended; its steps come no more"
    if view.promoted and int(view.promoted[-1]["step"]) > step and view.promoted[-1]["attempt"] == view.attempt:
        return f"overtaken: {view.promoted[-1]['name']} is stable already"
    return ""


def view_of(
    run: str,
    seq: int,
    state: RunState,
    *,
    algorithm: str = "",
    step: int | None = None,
    watch: dict[str, Any] | None = None,
) -> RunView:
    """The picture of a folded state; ``step`` and ``watch`` where more is known than the journal has."""
    incident = state.incident
    return RunView(
        run=run,
        seq=seq,
        state=state.phase,
        mode=state.policy.mode,
        algorithm=algorithm,
        paused=bool(state.pauses),
        pauses=tuple(dataclasses.asdict(pause) for pause in state.pauses),
        lifted=state.lifted,
        shut_down=state.shut_down,
        next_start=next_start(state) if state.shut_down else "",
        finished=state.finished,
        decision=state.decision,
        reason=state.reason,
        attempt=state.attempt,
        live=state.live,
        handle=state.handle,
        tripped=state.tripped,
        held_trip=state.held_trip,
        held=tuple(trip.words for trip in state.held),
        dismissed=tuple(dataclasses.asdict(one) for one in state.dismissed),
        step=state.step if step is None else step,
        journaled_step=state.step,
        watch=watch,
        lr_scale=state.lr_scale,
        seed=state.seed,
        rng=state.rng,
        resumed_from=state.resumed_from,
        resumed_step=state.resumed_step,
        active=state.active,
        promoted=tuple(dataclasses.asdict(snapshot) for snapshot in state.promoted),
        unpromoted=tuple(dict(vars(snapshot)) for snapshot in state.unpromoted),
        incident=None if incident is None else dataclasses.asdict(incident),
        divergences=0 if incident is None else incident.divergences,
        divergences_run=state.divergences_run,
        infrastructure_failures=state.infrastructure_failures,
        furthest_trip=state.furthest_trip,
        incident_ends_at=None if incident is None else state.furthest_trip + state.policy.watch_steps,
        procedure=None if state.procedure is None else dataclasses.asdict(state.procedure),
        trips={"divergence": state.trips_divergence, "infrastructure": state.trips_infrastructure},
        would_have_tripped=dict(state.observed),
        restarts={"divergence": state.restarts_divergence, "infrastructure": state.restarts_infrastructure},
        lockouts=state.lockouts,
    )
