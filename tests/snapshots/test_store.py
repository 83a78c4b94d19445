"""States, links, promotion and quarantine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusewire.errors import SnapshotError
from fusewire.snapshots import FileLayer, SnapshotStore, load_state, snapshot_name

from .support import promote, write


def link(run_dir: Path, name: str) -> str | None:
    try:
        return (run_dir / name).readlink().as_posix()
    except OSError:
        return None


def test_an_empty_run_has_nothing(tmp_path: Path) -> None:
    """Every question has an answer before the first snapshot, and before the folder exists."""
    store = SnapshotStore(tmp_path / "new")
    assert (store.list(), store.candidates(), store.promoted(), store.unusable()) == ([], [], [], [])
    assert (store.stable(), store.active(), store.newest_verified()) == (None, None, None)
    assert store.remove_leftovers() == ()


def test_order_is_that_of_writing(tmp_path: Path) -> None:
    """Attempts come one after the other; within one the steps do, whatever their number of digits."""
    names = [write(tmp_path, 900), write(tmp_path, 1000), write(tmp_path, 950, 1), write(tmp_path, 20, 10)]
    assert [info.name for info in SnapshotStore(tmp_path).list()] == names


def test_a_candidate_becomes_stable_by_promotion(tmp_path: Path) -> None:
    """Promotion moves it from candidates to promoted, freezes its baselines, and swaps the relative link."""
    first, second = write(tmp_path, 1), write(tmp_path, 2)
    store = SnapshotStore(tmp_path, clock=lambda: 5.0)
    assert store.stable() is None
    store.promote(first, by="gate", evidence={"watched": 100}, baselines={"value_loss": {"median": 1.5}})
    assert [info.name for info in store.candidates()] == [second]
    assert [info.name for info in store.promoted()] == [first]
    assert store.baselines(first) == {"value_loss": {"median": 1.5}}
    assert store.get(first).why == "by gate"
    assert link(tmp_path, "stable_checkpoint_latest") == f"snapshots/{first}"
    promotion = json.loads((tmp_path / "snapshots" / first / "promotion.json").read_bytes())
    assert promotion == {
        "by": "gate",
        "time": 5.0,
        "sequence": 1,
        "evidence": {"watched": 100},
        "baselines": {"value_loss": {"median": 1.5}},
    }


def test_a_promotion_that_froze_nothing_leaves_the_baselines_of_the_one_before(tmp_path: Path) -> None:
    """A person's promotion does not wipe what the gate measured; a later measurement speaks for itself."""
    names = [write(tmp_path, step) for step in (1, 2, 3, 4)]
    store = SnapshotStore(tmp_path)
    store.promote(names[0], by="ada", evidence={})
    assert store.baselines(names[0]) == {}
    store.promote(names[2], by="gate", evidence={}, baselines={"kl": {"median": 1.0}})
    store.promote(names[1], by="ada", evidence={}, baselines={})
    assert store.baselines(names[1]) == {"kl": {"median": 1.0}}
    store.promote(names[3], by="gate", evidence={}, baselines={"kl": {"median": 2.0}})
    assert [store.baselines(name) for name in (names[1], names[3])] == [{"kl": {"median": v}} for v in (1.0, 2.0)]
    assert store.baselines(names[0]) == {}


def test_stable_is_the_last_promoted_not_the_highest_step(tmp_path: Path) -> None:
    """After a rollback, snapshots of lower steps are promoted and become stable like any other."""
    high, low = write(tmp_path, 5000), write(tmp_path, 400, 1)
    promote(tmp_path, high, low)
    store = SnapshotStore(tmp_path)
    assert [info.name for info in store.promoted()] == [high, low]
    assert store.stable() == store.get(low)


def test_promoting_twice_changes_nothing(tmp_path: Path) -> None:
    """A repeated promotion keeps the first one's evidence and order."""
    first, second = write(tmp_path, 1), write(tmp_path, 2)
    promote(tmp_path, first, second, first)
    store = SnapshotStore(tmp_path)
    assert [info.name for info in store.promoted()] == [first, second]
    assert link(tmp_path, "stable_checkpoint_latest") == f"snapshots/{second}"


def test_a_rejected_snapshot_is_no_candidate_and_not_resumed_from(tmp_path: Path) -> None:
    """Rejection is durable and carries its reasons; a person may still promote it."""
    first, second = write(tmp_path, 1), write(tmp_path, 2)
    store = SnapshotStore(tmp_path)
    store.reject(second, ["KlSpike fired", "value_loss missing"])
    assert store.get(second).state == "rejected"
    assert store.get(second).why == "KlSpike fired; value_loss missing"
    newest = store.newest_verified()
    assert newest is not None
    assert newest.name == first
    store.promote(second, by="ada", evidence={})
    assert store.get(second).state == "promoted"


def test_a_promoted_snapshot_cannot_be_rejected(tmp_path: Path) -> None:
    """What is stable goes by rollback, never by the gate."""
    name = write(tmp_path, 1)
    promote(tmp_path, name)
    with pytest.raises(SnapshotError, match="roll back"):
        SnapshotStore(tmp_path).reject(name, ["late"])
    assert SnapshotStore(tmp_path).get(name).state == "promoted"


def test_quarantine_is_for_ever(tmp_path: Path) -> None:
    """A quarantined snapshot is in no list of usable ones, cannot be promoted, made active or rolled back to."""
    names = [write(tmp_path, step) for step in (1, 2, 3)]
    promote(tmp_path, *names[:2])
    store = SnapshotStore(tmp_path)
    store.set_active(names[1])
    assert store.quarantine([names[1]], reason="diverged", journal_entry=12) == (names[1],)
    assert store.get(names[1]).state == "quarantined"
    assert store.get(names[1]).why == "diverged"
    assert json.loads((tmp_path / "quarantine" / names[1] / "quarantine.json").read_bytes())["journal_entry"] == 12
    assert names[1] not in {info.name for info in (*store.candidates(), *store.promoted())}
    assert store.active() is None
    assert link(tmp_path, "stable_checkpoint_latest") == f"snapshots/{names[0]}"
    for decide in (
        lambda: store.promote(names[1], by="ada", evidence={}),
        lambda: store.set_active(names[1]),
        lambda: store.roll_back(names[1], reason="r", journal_entry=1),
    ):
        with pytest.raises(SnapshotError, match="quarantine"):
            decide()


def test_quarantine_may_be_repeated(tmp_path: Path) -> None:
    """A second call answers the same and keeps the first reason."""
    name = write(tmp_path, 1)
    store = SnapshotStore(tmp_path)
    assert store.quarantine([name, "nonsense", "../.."], reason="first", journal_entry=3) == (name,)
    assert store.quarantine([name], reason="second", journal_entry=3) == (name,)
    assert store.get(name).why == "first"


def test_without_any_promoted_one_left_the_link_is_gone(tmp_path: Path) -> None:
    """stable_checkpoint_latest never leads to a quarantined snapshot."""
    name = write(tmp_path, 1)
    promote(tmp_path, name)
    SnapshotStore(tmp_path).quarantine([name], reason="r", journal_entry=None)
    assert link(tmp_path, "stable_checkpoint_latest") is None


def test_a_mark_counts_even_where_the_move_failed(tmp_path: Path) -> None:
    """A snapshot with quarantine.json is quarantined wherever it lies."""
    first, second = write(tmp_path, 1), write(tmp_path, 2)
    promote(tmp_path, second)
    (tmp_path / "quarantine").write_text("not a folder, so nothing can be moved there")
    store = SnapshotStore(tmp_path)
    assert store.quarantine([second], reason="r", journal_entry=1) == (second,)
    assert store.get(second).state == "quarantined"
    newest = store.newest_verified()
    assert newest is not None
    assert newest.name == first
    assert link(tmp_path, "stable_checkpoint_latest") is None


def test_active_is_what_the_link_says(tmp_path: Path) -> None:
    """set_active swaps a relative link, None removes it, and a link to nothing is no active snapshot."""
    name = write(tmp_path, 1)
    store = SnapshotStore(tmp_path)
    store.set_active(name)
    assert store.active() == store.get(name)
    assert link(tmp_path, "active") == f"snapshots/{name}"
    moved = tmp_path.rename(tmp_path.with_name(tmp_path.name + "-moved"))
    assert SnapshotStore(moved).active() == SnapshotStore(moved).get(name)
    SnapshotStore(moved).set_active(None)
    SnapshotStore(moved).set_active(None)
    assert link(moved, "active") is None
    (moved / "active").symlink_to("snapshots/step-000000000099-a000")
    assert SnapshotStore(moved).active() is None


def test_an_unknown_name_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    """Every decision about a snapshot that does not exist is refused."""
    store = SnapshotStore(tmp_path)
    for decide in (store.get, store.set_active, store.baselines, store.manifest):
        with pytest.raises(SnapshotError, match="no such snapshot"):
            decide(snapshot_name(1, 0))
    with pytest.raises(SnapshotError, match="no such snapshot"):
        store.promote("active", by="ada", evidence={})


def test_a_step_means_the_promoted_snapshot_then_the_newest_and_never_a_rejected_one(tmp_path: Path) -> None:
    """What is rejected must be named in full; what is in quarantine cannot be meant at all."""
    first, again, later = write(tmp_path, 5), write(tmp_path, 5, 1), write(tmp_path, 5, 2)
    rejected, out = write(tmp_path, 7, 2), write(tmp_path, 8, 2)
    store = SnapshotStore(tmp_path)
    store.reject(rejected, ["it tripped"])
    store.quarantine([out], reason="r", journal_entry=None)
    assert store.find("5").name == later
    promote(tmp_path, first)
    assert [store.find(given).name for given in ("5", again, rejected)] == [first, again, rejected]
    for given in ("7", "8", out, "step-5", ""):
        with pytest.raises(SnapshotError, match=f"no usable snapshot {given}; steps that there are: 5") as refused:
            store.find(given)
        assert (rejected in str(refused.value)) == (given == "7")


def test_newest_verified_leaves_out_what_it_is_told_to(tmp_path: Path) -> None:
    """An excluded snapshot is passed over without being touched."""
    first, second = write(tmp_path, 1), write(tmp_path, 2)
    store = SnapshotStore(tmp_path)
    newest = store.newest_verified(excluding={second})
    assert newest is not None
    assert newest.name == first
    assert store.get(second).state == "candidate"


def test_copies_that_a_person_made_are_ignored(tmp_path: Path) -> None:
    """A folder with more than a snapshot's name is nobody's business."""
    name = write(tmp_path, 1)
    (tmp_path / "snapshots" / name).rename(tmp_path / "snapshots" / f"{name}.bak")
    (tmp_path / "snapshots" / "notes").mkdir()
    assert SnapshotStore(tmp_path).list() == []
    assert SnapshotStore(tmp_path).unusable() == []


def test_a_decision_is_durable_before_it_has_consequences(tmp_path: Path) -> None:
    """The mark's bytes, its name and the folder are fsynced before any link or folder moves."""
    name = write(tmp_path, 1)
    promote(tmp_path, name)
    effects: list[tuple[str, str]] = []
    layer = FileLayer(lambda effect, path: effects.append((effect, path.name)))
    SnapshotStore(tmp_path, files=layer).quarantine([name], reason="r", journal_entry=1)
    marked = effects.index(("rename", "quarantine.json"))
    assert effects[marked - 1][0] == "fsync"
    assert effects[marked + 1] == ("fsync", name)
    assert effects.index(("unlink", "stable_checkpoint_latest")) > marked + 1
    assert effects[-3:] == [("rename", name), ("fsync", "quarantine"), ("fsync", "snapshots")]


def test_a_persons_rollback_can_be_undone(tmp_path: Path) -> None:
    """A promoted snapshot that it put into quarantine is found, restored as it was, and is the stable one again."""
    names = [write(tmp_path, step) for step in (1, 2, 3)]
    promote(tmp_path, *names[:2])
    store = SnapshotStore(tmp_path)
    assert [info.name for info in store.after(names[0])] == names[1:]
    assert [info.name for info in store.after(None)] == names
    store.roll_back(names[0], reason="rollback by ada: a typo", journal_entry=4, by_person=True)
    assert store.after(names[0]) == []
    assert store.find("2", restorable=True).name == names[1]
    with pytest.raises(SnapshotError, match=f"in quarantine .*a typo.*quarantine/{names[1]}"):
        store.find("2")
    with pytest.raises(SnapshotError, match=f"in quarantine .*quarantine/{names[2]}"):
        store.find("3", restorable=True)
    for _ in range(2):
        store.restore(names[1])
        assert store.stable() == store.get(names[1])
        assert link(tmp_path, "stable_checkpoint_latest") == f"snapshots/{names[1]}"
        assert load_state(store.get(names[1]).path)
    with pytest.raises(SnapshotError, match="not a target"):
        store.restore(names[2])


def test_what_a_read_error_set_aside_is_restored(tmp_path: Path) -> None:
    """Passed over by a rollback, whenever it was written, it is back as it was once a person names it again."""
    names = [write(tmp_path, step) for step in (1, 2, 3, 4)]
    promote(tmp_path, names[0], names[2], names[1])
    store = SnapshotStore(tmp_path)
    away = store.roll_back(names[2], reason="KLSpike", journal_entry=4, unread=[names[1]])
    assert away == (names[1], names[3])
    assert [(info.name, info.restorable) for info in store.list() if info.state == "quarantined"] == [
        (names[1], True),
        (names[3], False),
    ]
    assert store.stable() == store.get(names[2])
    assert store.find("2", restorable=True).why == "could not be read, so the run went further back: KLSpike"
    store.restore(names[1])
    assert store.stable() == store.get(names[1])


def test_what_a_restart_left_behind_is_restored(tmp_path: Path) -> None:
    """Alerts doubted it and nothing tripped: a person may name it, rejected or not, and it is what it was."""
    names = [write(tmp_path, step) for step in (1, 2, 3)]
    promote(tmp_path, names[0])
    store = SnapshotStore(tmp_path)
    store.reject(names[1], ["KLSpike fired after the snapshot"])
    store.roll_back(names[0], reason="left behind by a restart", journal_entry=4, left_behind=True)
    assert store.newest_verified() == store.get(names[0])
    for step, state in (("2", "rejected"), ("3", "candidate")):
        assert store.find(step, restorable=True).restorable
        store.restore(store.find(step, restorable=True).name)
        assert store.find(f"step-00000000000{step}-a000").state == state
    assert store.stable() == store.get(names[0])


def test_a_rejected_one_is_resumed_from_where_rejections_count_for_nothing(tmp_path: Path) -> None:
    """The newest whose bytes hold; a damaged one goes to quarantine all the same."""
    names = [write(tmp_path, step) for step in (1, 2, 3)]
    store = SnapshotStore(tmp_path)
    for name in names[1:]:
        store.reject(name, ["KLSpike fired after the snapshot"])
    state = next(path for path in store.get(names[2]).path.rglob("*") if path.suffix == ".safetensors")
    state.write_bytes(b"")
    assert store.newest_verified() == store.get(names[0])
    assert store.newest_verified(rejected_too=True) == store.get(names[1])
    assert store.get(names[2]).state == "quarantined"


def test_what_a_divergence_condemned_is_not_restored(tmp_path: Path) -> None:
    """A rollback that no person asked for, and marks of older versions, are for good."""
    names = [write(tmp_path, step) for step in (1, 2)]
    promote(tmp_path, *names)
    store = SnapshotStore(tmp_path)
    store.roll_back(names[0], reason="KLSpike", journal_entry=4)
    with pytest.raises(SnapshotError, match=r"no usable snapshot 2.*KLSpike"):
        store.find("2", restorable=True)
    with pytest.raises(SnapshotError, match=r"KLSpike.*not a target"):
        store.restore(names[1])
