"""A rollback leaves nothing behind that was written after its target."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusewire.errors import SnapshotError
from fusewire.snapshots import SnapshotStore

from .support import promote, write


def states(run_dir: Path) -> dict[str, str]:
    return {info.name: info.state for info in SnapshotStore(run_dir).list()}


def test_what_was_written_after_the_target_goes(tmp_path: Path) -> None:
    """The target becomes active, later ones of its attempt and of later attempts are out, earlier ones stay."""
    before, target = write(tmp_path, 100), write(tmp_path, 200)
    later, lower = write(tmp_path, 300), write(tmp_path, 250, 1)
    promote(tmp_path, before, target, lower)
    store = SnapshotStore(tmp_path)
    assert store.roll_back(target, reason="KlSpike", journal_entry=7) == (lower, later)
    assert states(tmp_path) == {before: "promoted", target: "promoted", later: "quarantined", lower: "quarantined"}
    assert store.active() == store.get(target)
    assert store.stable() == store.get(target)
    assert store.get(lower).why == "KlSpike"


def test_a_lower_step_of_a_later_attempt_is_later(tmp_path: Path) -> None:
    """Order is attempt, then step: a snapshot at a lower step that a later attempt wrote goes too."""
    target, lower = write(tmp_path, 400), write(tmp_path, 50, 3)
    SnapshotStore(tmp_path).roll_back(target, reason="r", journal_entry=1)
    assert states(tmp_path) == {target: "candidate", lower: "quarantined"}


def test_a_higher_step_of_an_earlier_attempt_stays(tmp_path: Path) -> None:
    """A rollback to a later attempt's snapshot does not go by the step number."""
    earlier, target = write(tmp_path, 5000), write(tmp_path, 400, 1)
    SnapshotStore(tmp_path).roll_back(target, reason="r", journal_entry=1)
    assert states(tmp_path) == {earlier: "candidate", target: "candidate"}


def test_an_old_high_checkpoint_never_comes_back(tmp_path: Path) -> None:
    """After the rollback to 400, checkpoint 5000 is never the newest, stable or promotable again."""
    target, old = write(tmp_path, 400), write(tmp_path, 5000)
    store = SnapshotStore(tmp_path)
    store.roll_back(target, reason="r", journal_entry=1)
    fresh = write(tmp_path, 450, 1)
    newest = store.newest_verified()
    assert newest is not None
    assert newest.name == fresh
    promote(tmp_path, fresh)
    assert store.stable() == store.get(fresh)
    assert store.get(old).state == "quarantined"


def test_broken_and_half_written_ones_go_too(tmp_path: Path) -> None:
    """Folders without a usable manifest are quarantined, and leftovers of the writer deleted."""
    target, broken = write(tmp_path, 1), write(tmp_path, 2)
    (tmp_path / "snapshots" / broken / "manifest.json").write_text("{")
    (tmp_path / "snapshots" / ".staging-step-000000000003-a000").mkdir()
    store = SnapshotStore(tmp_path)
    assert store.roll_back(target, reason="r", journal_entry=1) == (broken,)
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == [target]
    assert store.get(broken).state == "quarantined"


def test_from_scratch_leaves_nothing_active(tmp_path: Path) -> None:
    """Without a target everything is quarantined and no link is left."""
    names = [write(tmp_path, 1), write(tmp_path, 2)]
    promote(tmp_path, names[0])
    store = SnapshotStore(tmp_path)
    store.set_active(names[0])
    assert store.roll_back(None, reason="r", journal_entry=1) == tuple(names)
    assert (store.active(), store.stable(), store.newest_verified()) == (None, None, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["quarantine", "snapshots"]


def test_a_target_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    """An unknown or broken target is refused before anything is moved."""
    first, second = write(tmp_path, 1), write(tmp_path, 2)
    (tmp_path / "snapshots" / first / "manifest.json").write_text("{")
    store = SnapshotStore(tmp_path)
    for target in (first, "step-000000000009-a000"):
        with pytest.raises(SnapshotError, match=target):
            store.roll_back(target, reason="r", journal_entry=1)
    assert store.get(second).state == "candidate"
    assert store.active() is None


def test_the_ladder_goes_down_one_stable_snapshot_at_a_time(tmp_path: Path) -> None:
    """Each rollback to the one before last takes the failed one out, until none is left."""
    names = [write(tmp_path, step) for step in (1, 2, 3)]
    promote(tmp_path, *names)
    store = SnapshotStore(tmp_path)
    for left in (2, 1):
        store.roll_back(store.promoted()[left - 1].name, reason="again", journal_entry=left)
        assert [info.name for info in store.promoted()] == names[:left]
    store.roll_back(None, reason="again", journal_entry=9)
    assert store.promoted() == []


def test_repeating_it_answers_the_same(tmp_path: Path) -> None:
    """After a crash of the caller the same rollback can be asked for again."""
    target, later = write(tmp_path, 1), write(tmp_path, 2)
    store = SnapshotStore(tmp_path)
    assert store.roll_back(target, reason="r", journal_entry=4) == (later,)
    assert store.roll_back(target, reason="r", journal_entry=4) == (later,)
    assert store.roll_back(target, reason="another", journal_entry=5) == ()
