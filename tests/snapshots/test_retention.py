"""What may be deleted, and what never."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusewire.snapshots import RetentionPolicy, SnapshotInfo, SnapshotStore, plan_retention, snapshot_name

from .support import promote, write


def info(step: int, state: str = "promoted", *, attempt: int = 0, **more: Any) -> SnapshotInfo:
    name = snapshot_name(step, attempt)
    given: dict[str, Any] = {"size": 10, "time": 0, **more}
    return SnapshotInfo(name=name, step=step, attempt=attempt, path=Path(name), state=state, **given)  # type: ignore[arg-type]


def kept(
    infos: list[SnapshotInfo], policy: RetentionPolicy, now: float = 0, protected: tuple[str, ...] = ()
) -> list[int]:
    doomed = plan_retention(infos, policy, now, protected)
    return [one.step for one in infos if one.name not in doomed]


def test_nothing_goes_below_the_limits() -> None:
    """Retention deletes only what a limit asks for."""
    infos = [info(step, state) for step, state in enumerate(["promoted", "candidate", "rejected", "promoted"])]
    assert kept(infos, RetentionPolicy()) == [0, 1, 2, 3]


def test_the_order_in_which_things_go() -> None:
    """Rejected ones first, overtaken candidates next, then promoted ones that no rule keeps."""
    infos = [
        *(info(step) for step in (10, 20, 30, 40)),
        info(45, "candidate"),
        info(50, "rejected"),
        *(info(step) for step in (60, 70)),
        info(80, "candidate"),
    ]
    policy = RetentionPolicy(keep_promoted=2, keep_total=6)
    doomed = plan_retention(infos, policy, 0)
    assert [name[5:17].lstrip("0") for name in doomed] == ["50", "45", "20"]


def test_the_last_promoted_the_newest_and_the_active_never_go() -> None:
    """Under the tightest limits these are left, and what is in verification too."""
    infos = [info(1), info(2), info(3), info(4), info(5, "candidate"), info(6, "candidate"), info(7, "candidate")]
    policy = RetentionPolicy(keep_promoted=1, keep_total=0, keep_bytes=0, keep_seconds=0)
    protected = (snapshot_name(1, 0), snapshot_name(6, 0))
    assert kept(infos, policy, now=1e9, protected=protected) == [1, 4, 5, 6, 7]


def test_a_flood_of_candidates_does_not_starve_the_gate() -> None:
    """While more candidates arrive than are kept, the oldest waiting one stays until it is judged."""
    infos = [info(0)]
    for step in range(1, 200):
        infos.append(info(step, "candidate"))
        doomed = plan_retention(infos, RetentionPolicy(keep_total=5), 0)
        infos = [one for one in infos if one.name not in doomed]
        assert [one.step for one in infos][:2] == [0, 1]
        assert infos[-1].step == step
        assert len(infos) == min(5, step + 1)


def test_a_candidate_of_an_ended_attempt_does_not_starve_the_present_one() -> None:
    """It can never be promoted: the present attempt's oldest candidate is the one that lives to be judged."""
    infos = [info(50), info(100, "candidate")]
    for step in range(110, 190, 10):
        infos.append(info(step, "candidate", attempt=1))
        doomed = plan_retention(infos, RetentionPolicy(keep_total=3), 0, (infos[1].name,), attempt=1)
        infos = [one for one in infos if one.name not in doomed]
        assert [one.step for one in infos[:3]] == [50, 100, 110]


def test_a_candidate_of_an_ended_attempt_goes_before_one_that_waits() -> None:
    """What the gate can still promote is worth more than what it cannot."""
    infos = [info(50), info(100, "candidate"), *(info(step, "candidate", attempt=1) for step in (110, 120, 130))]
    assert plan_retention(infos, RetentionPolicy(keep_total=4), 0, attempt=1) == (infos[1].name,)


def test_the_last_promoted_is_the_last_one_that_was_promoted_however_old() -> None:
    """A person promotes an older snapshot: it is the stable one, so it is kept, whatever was written after it."""
    infos = [info(step, sequence=step // 100) for step in range(100, 700, 100)]
    infos.insert(2, info(210, sequence=7))
    assert kept(infos, RetentionPolicy(keep_promoted=1, keep_total=2)) == [210, 600]
    assert kept(infos, RetentionPolicy(keep_promoted=3, keep_total=3)) == [210, 500, 600]


def test_old_promoted_ones_thin_out_but_reach_back() -> None:
    """After 2,000 promotions a handful is left, with one within each doubling of the distance."""
    infos: list[SnapshotInfo] = []
    policy = RetentionPolicy(keep_promoted=3, keep_total=15)
    for step in range(100, 200_100, 100):
        infos.append(info(step))
        doomed = plan_retention(infos, policy, 0)
        infos = [one for one in infos if one.name not in doomed]
    assert len(infos) <= 15
    steps = [one.step for one in infos]
    assert steps[0] == 100
    assert steps[-3:] == [199_800, 199_900, 200_000]
    distances = sorted(200_000 - step for step in steps[:-1])
    assert all(far <= 4 * near for near, far in itertools.pairwise(distances))


def test_age_takes_only_what_no_rule_keeps() -> None:
    """An old promoted snapshot that is among the newest K stays, however old; an old rejected one goes."""
    infos = [info(1, time=0), info(2, "rejected", time=0), info(3, "rejected", time=90)]
    assert kept(infos, RetentionPolicy(keep_seconds=50), now=100) == [1, 3]


def test_bytes_are_a_limit_of_their_own() -> None:
    """Deleting goes on until the bytes fit, and no further."""
    infos = [info(step, "rejected", size=100) for step in range(10)] + [info(10, size=100)]
    assert kept(infos, RetentionPolicy(keep_bytes=350)) == [8, 9, 10]


def test_quarantine_has_its_own_limit() -> None:
    """The latest of the quarantine stay, and they count against nothing else."""
    infos = [info(1), *(info(step, "quarantined", attempt=1) for step in (5, 6, 7, 8))]
    assert kept(infos, RetentionPolicy(keep_total=1, keep_quarantined=2, keep_quarantined_seconds=0)) == [1, 7, 8]
    assert kept(infos, RetentionPolicy(keep_quarantined_bytes=15)) == [1, 8]


def test_what_came_to_quarantine_today_waits_for_a_person() -> None:
    """The number of a full quarantine takes only what has lain there for a day; a limit in bytes takes anything."""
    day = 86400.0
    infos = [info(step, "quarantined", quarantined_at=day * step) for step in (1, 2, 3, 4)]
    assert kept(infos, RetentionPolicy(keep_quarantined=0), now=4.5 * day) == [4]
    assert kept(infos, RetentionPolicy(keep_quarantined=0), now=3.5 * day) == [3, 4]
    assert kept(infos, RetentionPolicy(keep_quarantined=3), now=9 * day) == [2, 3, 4]
    assert kept(infos, RetentionPolicy(keep_quarantined_bytes=15), now=4.5 * day) == [4]


def test_where_rejections_count_for_nothing_the_newest_stay() -> None:
    """A run that is only observed loses its oldest snapshots, as if nobody had rejected any."""
    observing = RetentionPolicy(keep_total=3, keep_promoted=1, rejected_first=False)
    overtaken = [info(step, "candidate") for step in (2, 3)]
    assert kept([*overtaken, info(4, attempt=1), info(5, "rejected", attempt=1)], observing) == [3, 4, 5]
    assert kept([info(1), *(info(step, "rejected") for step in range(2, 8))], observing) == [1, 6, 7]
    acting = RetentionPolicy(keep_total=1, keep_promoted=1)
    assert kept([info(1), info(2, "rejected")], acting) == [1]
    assert kept([info(1), info(2, "rejected")], RetentionPolicy(keep_total=1, rejected_first=False)) == [1, 2]


def test_what_had_been_promoted_is_never_counted_out_of_quarantine() -> None:
    """A person's rollback may put many stable snapshots there: only a limit in bytes takes them, last of all."""
    infos = [info(step, "quarantined", was_promoted=step % 2 == 1) for step in range(1, 9)]
    assert kept(infos, RetentionPolicy(keep_quarantined=1, keep_quarantined_seconds=0)) == [1, 3, 5, 7, 8]
    assert kept(infos, RetentionPolicy(keep_quarantined=0, keep_quarantined_seconds=0)) == [1, 3, 5, 7]
    assert kept(infos, RetentionPolicy(keep_quarantined=9, keep_quarantined_bytes=50)) == [1, 3, 5, 7, 8]
    assert kept(infos, RetentionPolicy(keep_quarantined=9, keep_quarantined_bytes=25)) == [5, 7]


def test_a_policy_that_keeps_nothing_is_refused() -> None:
    """keep_promoted=0 would leave a run with nothing to go back to."""
    with pytest.raises(ValueError, match="keep_promoted 0"):
        RetentionPolicy(keep_promoted=0)


INFOS = st.lists(
    st.builds(
        info,
        st.integers(0, 50),
        st.sampled_from(["promoted", "candidate", "rejected", "quarantined"]),
        attempt=st.integers(0, 3),
        size=st.integers(0, 100),
        time=st.floats(0, 100),
    ),
    unique_by=lambda one: one.name,
    max_size=25,
).map(lambda infos: sorted(infos, key=lambda one: one.order))
POLICIES = st.builds(
    RetentionPolicy,
    keep_promoted=st.integers(1, 4),
    keep_total=st.integers(0, 12),
    keep_seconds=st.none() | st.floats(0, 100),
    keep_bytes=st.none() | st.integers(0, 500),
    keep_quarantined=st.integers(0, 5),
    keep_quarantined_seconds=st.floats(0, 100),
    rejected_first=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(infos=INFOS, policy=POLICIES, picks=st.sets(st.integers(0, 24)))
def test_whatever_the_policy_the_run_can_go_back_and_go_on(
    infos: list[SnapshotInfo], policy: RetentionPolicy, picks: set[int]
) -> None:
    """The last promoted, the newest usable and every protected one stay; a second plan finds nothing more to do."""
    protected = {infos[pick].name for pick in picks if pick < len(infos)}
    doomed = set(plan_retention(infos, policy, 100, protected))
    promoted = [one.name for one in infos if one.state == "promoted"]
    also = {"promoted", "candidate"} if policy.rejected_first else {"promoted", "candidate", "rejected"}
    usable = [one.name for one in infos if one.state in also]
    assert not doomed & {*promoted[-1:], *usable[-1:], *protected}
    rest = [one for one in infos if one.name not in doomed]
    assert plan_retention(rest, policy, 100, protected) == ()
    outside = [one for one in rest if one.state != "quarantined"]
    assert len(outside) <= max(policy.keep_total, 3 + len(protected))


class Meanwhile(random.Random):
    """Lets something happen in the middle of a sampled verification, when it chooses what to read."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__(1)
        self._happens = happens

    def sample(self, *args: Any, **more: Any) -> Any:
        self._happens()
        return super().sample(*args, **more)


def test_the_store_deletes_what_the_plan_names(tmp_path: Path) -> None:
    """Folders are gone, links still hold, what is in verification stays, and old leftovers are swept up."""
    names = [write(tmp_path, step) for step in range(1, 7)]
    promote(tmp_path, *names[:5])
    policy = RetentionPolicy(keep_promoted=1, keep_total=3)
    deleted: list[str] = []
    store = SnapshotStore(tmp_path, rng=Meanwhile(lambda: deleted.extend(store.apply_retention(policy, attempt=1))))
    store.set_active(names[0])
    for leftover in (".staging-step-000000000009-a000", ".trash-step-000000000009-a001",
                     ".staging-step-000000000009-a001"):  # fmt: skip
        (tmp_path / "snapshots" / leftover).mkdir()
    assert store.verify(names[1], "sampled").ok
    assert set(deleted) == set(names[2:4])
    left = sorted(path.name for path in (tmp_path / "snapshots").iterdir())
    assert left == [".staging-step-000000000009-a001", names[0], names[1], names[4], names[5]]
    assert store.stable() == store.get(names[4])
    assert store.active() == store.get(names[0])


def test_a_snapshot_is_deleted_once_its_verification_is_over(tmp_path: Path) -> None:
    """Its protection ends with the reading, also of a snapshot that is verified twice at a time."""
    names = [write(tmp_path, step) for step in (1, 2, 3)]
    policy = RetentionPolicy(keep_total=1)
    begun: list[str] = []

    def twice() -> None:
        begun.append(names[0])
        if len(begun) == 1:
            assert store.verify(names[0], "sampled").ok
            assert store.apply_retention(policy, attempt=1) == (names[1],)

    store = SnapshotStore(tmp_path, rng=Meanwhile(twice))
    assert store.verify(names[0], "sampled").ok
    assert len(begun) == 2
    assert store.apply_retention(policy, attempt=1) == (names[0],)


def test_retention_keeps_what_a_person_promoted_and_the_link_to_it(tmp_path: Path) -> None:
    """The link never dangles, and one that a crash left behind is renewed."""
    names = {step: write(tmp_path, step) for step in (100, 200, 210, 300, 400, 500, 600)}
    promote(tmp_path, *(name for step, name in names.items() if step != 210), names[210])
    link = tmp_path / "stable_checkpoint_latest"
    link.unlink()
    link.symlink_to(f"snapshots/{names[200]}")
    store = SnapshotStore(tmp_path)
    store.apply_retention(RetentionPolicy(keep_promoted=1, keep_total=4))
    assert store.stable() == store.get(names[210])
    assert link.resolve().name == names[210]
    assert len(store.list()) == 4


def test_the_oldest_in_quarantine_goes_first(tmp_path: Path) -> None:
    """Quarantine is limited by when things got there, not by their step; broken ones count."""
    names = [write(tmp_path, step) for step in (1, 2, 3)]
    (tmp_path / "snapshots" / names[0] / "manifest.json").write_text("{")
    ticks = iter([30.0, 10.0, 20.0])
    store = SnapshotStore(tmp_path, clock=lambda: next(ticks, 40.0))
    for name in names:
        store.quarantine([name], reason="r", journal_entry=None)
    policy = RetentionPolicy(keep_quarantined=1, keep_quarantined_seconds=0)
    assert store.apply_retention(policy) == (names[1], names[2])
    assert [path.name for path in (tmp_path / "quarantine").iterdir()] == [names[0]]
