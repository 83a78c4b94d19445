"""The snapshots of one run as they lie on the disk: states, links, promotion, quarantine, retention.

No locks: what decides is one JSON file beside the manifest, replaced in one step, and every operation may be
repeated after a crash at any point. One process at a time decides (the webhook); any number may read.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Literal

from fusewire.errors import SnapshotError
from fusewire.snapshots.filelayer import FileLayer
from fusewire.snapshots.layout import (
    ACTIVE_LINK,
    PROMOTION_FILE,
    QUARANTINE,
    QUARANTINE_FILE,
    REJECTION_FILE,
    SNAPSHOTS,
    STABLE_LINK,
    STAGING_PREFIX,
    TRASH_PREFIX,
    leftover_of,
    parse_name,
)
from fusewire.snapshots.links import linked_name, swap_link
from fusewire.snapshots.manifest import Manifest, read_manifest
from fusewire.snapshots.retention import RetentionPolicy, SnapshotInfo, State, plan_retention
from fusewire.snapshots.verification import Verification, verify_files

_log = logging.getLogger(__name__)

# SnapshotStore.list hides the builtin within the class
Infos = list[SnapshotInfo]
Problems = list[tuple[str, str]]
Paths = list[Path]


class SnapshotStore:
    """What the supervisor does with the snapshots in ``run_dir``. Nothing is cached: each method reads the disk.

    Threads may share one: retention then leaves alone what another of them verifies.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        files: FileLayer | None = None,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        """Touches no file.

        Args:
            clock: Unix seconds; for people and for ages in :meth:`apply_retention`.
            rng: chooses what a sampled verification reads.
        """
        self._run_dir = run_dir.absolute()
        self._snapshots = self._run_dir / SNAPSHOTS
        self._quarantine = self._run_dir / QUARANTINE
        self._files = files or FileLayer()
        self._clock = clock
        self._rng = rng or random.Random()
        self._lock = threading.Lock()
        self._in_verification: list[str] = []

    # What there is ----------------------------------------------------------------------------------------

    def list(self) -> Infos:
        """Every complete snapshot, quarantined ones too, in order of writing."""
        infos = [info for path in self._folders() if (info := _describe(path)) is not None]
        return sorted(infos, key=lambda info: (info.order, info.name))

    def unusable(self) -> Problems:
        """``(name, problem)`` of what has a snapshot's name outside quarantine and can be read, but is none."""
        found: Problems = []
        for path in _entries(self._snapshots):
            try:
                if path.is_symlink() or not path.is_dir():
                    raise SnapshotError(f"{path}: is no folder")
                read_manifest(path)
            except SnapshotError as error:
                if error.reason != "unreadable":
                    found.append((path.name, str(error)))
        return sorted(found)

    def candidates(self) -> Infos:
        """Complete, neither promoted, rejected nor quarantined; in order of writing."""
        return [info for info in self.list() if info.state == "candidate"]

    def promoted(self) -> Infos:
        """Promoted and not quarantined; the first promoted first."""
        infos = [info for info in self.list() if info.state == "promoted"]
        return sorted(infos, key=lambda info: info.promotion_order)

    def get(self, name: str) -> SnapshotInfo:
        """The snapshot ``name``.

        Raises:
            SnapshotError: there is no complete one of that name.
        """
        for path in self._folders():
            if path.name == name:
                info = _describe(path)
                if info is None:
                    read_manifest(path)
                else:
                    return info
        raise SnapshotError(
            f"{self._snapshots / name}: no such snapshot; see `fusewire snapshots`", reason="missing"
        )

    def find(self, given: str, *, restorable: bool = False) -> SnapshotInfo:
        """The snapshot that a person means by its name or its step.

        Of several at one step it is the promoted one, then the newest. Its full name alone means a rejected one.

        Args:
            restorable: where no other is meant, one in quarantine that :meth:`restore` brings back.

        Raises:
            SnapshotError: there is none; the message names those that there are.
        """
        every = self.list()
        infos = [info for info in every if info.state != "quarantined"]
        usable = [info for info in infos if info.state != "rejected"]
        if given.isdecimal():
            found = [info for info in usable if info.step == int(given)]
        else:
            found = [info for info in infos if info.name == given]
        if found:
            return max(found, key=lambda info: (info.state == "promoted", info.order))
        aside = [info for info in every if info.state == "quarantined" and given in {info.name, str(info.step)}]
        if restorable and (back := [info for info in aside if info.restorable]):
            return max(back, key=lambda info: info.promotion_order)
        rejected = [info.name for info in infos if given.isdecimal() and info.step == int(given)]
        there_are = ", ".join(dict.fromkeys(str(info.step) for info in usable)) or "none"
        raise SnapshotError(
            f"no usable snapshot {given}; steps that there are: {there_are}"
            + (f"; rejected, so only by its full name: {', '.join(rejected)}" if rejected else "")
            + "".join(
                f"; in quarantine ({info.why}): {info.path}"
                + (", a rollback to it brings it back" if info.restorable else "")
                for info in aside
            ),
            reason="missing",
        )

    def manifest(self, name: str) -> Manifest:
        """The manifest of snapshot ``name``.

        Raises:
            SnapshotError: there is no complete one of that name.
        """
        return read_manifest(self.get(name).path)

    def baselines(self, name: str) -> dict[str, Any]:
        """What was frozen when ``name`` was promoted, or at the last promotion before it that froze anything.

        A person's promotion freezes nothing. Empty: no promotion has.
        """
        info = self.get(name)
        earlier = [one for one in self.promoted() if one.promotion_order < info.promotion_order]
        for one in (info, *reversed(earlier)):
            value = _read_json(one.path / PROMOTION_FILE).get("baselines")
            if isinstance(value, dict) and value:
                return value
        return {}

    def stable(self) -> SnapshotInfo | None:
        """The last promoted snapshot: where ``stable_checkpoint_latest`` points, or must after a crash."""
        return next(reversed(self.promoted()), None)

    def active(self) -> SnapshotInfo | None:
        """What the next attempt resumes from; None: from scratch, or the link leads to nothing usable."""
        name = linked_name(self._run_dir / ACTIVE_LINK)
        return next((info for info in self.list() if info.name == name and info.state != "quarantined"), None)

    def verify(self, name: str, mode: Literal["full", "sampled"] = "full") -> Verification:
        """Compare the bytes on the disk with the manifest (see :func:`verify_files`). Never raises.

        Meanwhile :meth:`apply_retention` does not delete it.
        """
        with self._lock:
            self._in_verification.append(name)
        try:
            path = self.get(name).path
            return verify_files(path, read_manifest(path), mode=mode, rng=self._rng)
        except SnapshotError as error:
            return Verification(ok=False, problems=(str(error),), unreadable=error.reason == "unreadable")
        except OSError as error:
            return Verification(ok=False, problems=(str(error),), unreadable=True)
        finally:
            with self._lock:
                self._in_verification.remove(name)

    def newest_verified(
        self,
        excluding: Collection[str] = (),
        *,
        journal_entry: int | None = None,
        rejected_too: bool = False,
    ) -> SnapshotInfo | None:
        """The newest snapshot, promoted or candidate (or rejected, with ``rejected_too``), all of whose bytes hold.

        Damaged ones on the way go to quarantine under ``journal_entry``, and a warning says so; a run that stops at
        any of them does not find it again.

        Raises:
            SnapshotError: with reason ``unreadable`` and its name: one on the way cannot be read now; it stays.
        """
        for path in sorted(_named(self._snapshots), key=lambda p: _order(p.name), reverse=True):
            if path.name in excluding:
                continue
            try:
                info = _describe(path)
            except OSError as error:
                answer = Verification(ok=False, problems=(str(error),), unreadable=True)
            else:
                out = {"quarantined"} if rejected_too else {"rejected", "quarantined"}
                if info is not None and info.state in out:
                    continue
                answer = self.verify(path.name)
            if answer.ok:
                return self.get(path.name)
            reason = "cannot be resumed from: " + "; ".join(answer.problems)
            if answer.unreadable:
                raise SnapshotError(f"{path.name} {reason}", reason="unreadable", snapshot=path.name)
            _log.warning("%s %s; it goes to quarantine", path.name, reason)
            self.quarantine([path.name], reason=reason, journal_entry=journal_entry)
        return None

    # What is decided --------------------------------------------------------------------------------------

    def promote(
        self, name: str, *, by: str, evidence: dict[str, Any], baselines: dict[str, Any] | None = None
    ) -> None:
        """Make ``name`` the last promoted snapshot. Promoting it again only renews the link.

        Raises:
            SnapshotError: it is missing or in quarantine.
        """
        info = self.get(name)
        if info.state == "quarantined":
            raise SnapshotError(f"{info.path}: is in quarantine ({info.why})", reason="quarantined")
        if info.state != "promoted":
            # 1. the decision is durable
            promotion = {
                "by": by,
                "time": self._clock(),
                "sequence": 1 + max((other.sequence for other in self.promoted()), default=0),
                "evidence": evidence,
                "baselines": baselines or {},
            }
            self._files.write_json(info.path / PROMOTION_FILE, promotion)
        # 2. readers see it
        self.publish_stable()

    def publish_stable(self) -> None:
        """Let ``stable_checkpoint_latest`` say what the promotions say; untouched where it does.

        Raises:
            OSError: the link is as it was.
        """
        stable = self.stable()
        link = self._run_dir / STABLE_LINK
        if stable is not None or link.is_symlink():
            swap_link(link, None if stable is None else stable.path, self._files)

    def reject(self, name: str, reasons: Iterable[str]) -> None:
        """Never promote ``name`` by the gate, and never resume from it.

        Raises:
            SnapshotError: it is missing, or promoted (a promoted one goes by rollback or quarantine).
        """
        info = self.get(name)
        if info.state == "promoted":
            raise SnapshotError(f"{name}: is promoted; roll back to an earlier one instead", reason="promoted")
        if info.state == "candidate":
            value = {"reasons": [*reasons], "time": self._clock()}
            self._files.write_json(info.path / REJECTION_FILE, value)

    def set_active(self, name: str | None) -> None:
        """Let the next attempt resume from ``name``; None: start from scratch.

        Raises:
            SnapshotError: it is missing or in quarantine.
        """
        if name is not None and self.get(name).state == "quarantined":
            raise SnapshotError(f"{name}: is in quarantine", reason="quarantined")
        swap_link(self._run_dir / ACTIVE_LINK, None if name is None else self._snapshots / name, self._files)

    def quarantine(
        self,
        names: Iterable[str],
        *,
        reason: str,
        journal_entry: int | None,
        by_person: bool = False,
        unread: Collection[str] = (),
        left_behind: bool = False,
    ) -> tuple[str, ...]:
        """Move snapshots, whole or broken, to where nothing resumes from. May be repeated at any point.

        Args:
            by_person: nothing is wrong with them, a person goes back: :meth:`restore` may undo it.
            unread: those of them that could not be read when the run had to go back: nothing else is known against
                them, so :meth:`restore` may undo it too.
            left_behind: a restart went on from an older one, because alerts doubt these: nothing has tripped, so
                :meth:`restore` may undo it too, also for those that had not been promoted.

        Returns:
            The names that this call, or one before it with the same ``journal_entry``, put there.
        """
        moved: list[str] = []
        for name in names:
            path = self._snapshots / name
            if parse_name(name) is None or path.is_symlink() or not path.is_dir():
                continue
            # 1. the decision is durable: from here on no method takes the snapshot for usable
            if not (path / QUARANTINE_FILE).exists():
                why = f"could not be read, so the run went further back: {reason}" if name in unread else reason
                value = {"reason": why, "journal_entry": journal_entry, "time": self._clock()}
                marks = {"by_person": by_person, "unread": name in unread, "left_behind": left_behind}
                self._files.write_json(path / QUARANTINE_FILE, {**value, **marks})
            moved.append(name)
        # 2. readers of the link no longer get there
        self.publish_stable()
        # 3. out of the way; where the file system refuses, the mark above is enough
        for name in moved:
            self._move_to_quarantine(self._snapshots / name)
        if journal_entry is not None:
            entries = ((p, _read_json(p / QUARANTINE_FILE).get("journal_entry")) for p in self._folders())
            moved += [path.name for path, entry in entries if entry == journal_entry]
        return tuple(sorted(set(moved)))

    def restore(self, name: str) -> None:
        """Bring back what a restart, or of promoted ones a person's rollback or a read error, put into quarantine.

        May be repeated.

        Raises:
            SnapshotError: it is missing, or in quarantine for another reason.
        """
        info = self.get(name)
        if info.state == "quarantined" and not info.restorable:
            raise SnapshotError(f"{info.path}: is in quarantine ({info.why}): not a target", reason="quarantined")
        if info.path.parent == self._quarantine:
            # 1. to its place, still marked
            self._files.rename(info.path, self._snapshots / name)
            self._files.fsync(self._snapshots)
            self._files.fsync(self._quarantine)
        mark = self._snapshots / name / QUARANTINE_FILE
        if mark.exists():
            # 2. the decision
            self._files.unlink(mark)
            self._files.fsync(mark.parent)
        # 3. readers see it
        self.publish_stable()

    def after(self, target: str | None) -> Infos:
        """What :meth:`roll_back` to ``target`` would put into quarantine, in order of writing.

        Raises:
            SnapshotError: there is no complete snapshot of that name.
        """
        last = (-1, -1) if target is None else self.get(target).order
        return [info for info in self.list() if info.state != "quarantined" and info.order > last]

    def roll_back(
        self,
        target: str | None,
        *,
        reason: str,
        journal_entry: int | None,
        by_person: bool = False,
        unread: Collection[str] = (),
        left_behind: bool = False,
    ) -> tuple[str, ...]:
        """Quarantine all that was written after ``target`` and make it active. May be repeated at any point.

        After means: in a later attempt, or later in the same one, whatever the step number. Half-written leftovers
        are deleted. The trainer must be stopped. None: everything goes, and the next attempt starts from scratch.

        Args:
            by_person: a person goes back; see :meth:`quarantine`.
            unread: preferred to the target, but they could not be read: they go too, whenever they were written;
                see :meth:`quarantine`.
            left_behind: nothing has tripped; see :meth:`quarantine`.

        Returns:
            The names that this call, or one before it with the same ``journal_entry``, put into quarantine.

        Raises:
            SnapshotError: the target is missing, incomplete or in quarantine; nothing was changed.
        """
        last = (-1, -1)
        if target is not None:
            info = self.get(target)
            if info.state == "quarantined":
                raise SnapshotError(f"{target}: is in quarantine ({info.why}): not a target", reason="quarantined")
            last = info.order
        # 1. nothing of a killed writer stays
        self.remove_leftovers()
        # 2. the next attempt gets the target: never a link to something that is on its way out
        self.set_active(target)
        # 3. what came later is out
        later = [p.name for p in _named(self._snapshots) if _order(p.name) > last]
        return self.quarantine(
            sorted({*later, *unread}),
            reason=reason,
            journal_entry=journal_entry,
            by_person=by_person,
            unread=unread,
            left_behind=left_behind,
        )

    def apply_retention(self, policy: RetentionPolicy, *, attempt: int | None = None) -> tuple[str, ...]:
        """Delete what ``policy`` does not keep (see :func:`plan_retention`); the active one stays.

        One that :meth:`verify` reads at the moment stays too. ``stable_checkpoint_latest`` is renewed first: a
        crash or a full disk may have left it behind the promotions.

        Args:
            attempt: the present one, whose candidates can still be judged; half-written leftovers of earlier ones
                are removed. None: there is none.

        Returns:
            The deleted names.
        """
        self.publish_stable()
        if attempt is not None:
            self.remove_leftovers(before_attempt=attempt)
        active = linked_name(self._run_dir / ACTIVE_LINK)
        infos = sorted(self.list(), key=lambda info: info.quarantined_at)
        protected = {*self._in_verification, *([] if active is None else [active])}
        doomed = plan_retention(infos, policy, self._clock(), protected, attempt=attempt)
        paths = {info.name: info.path for info in infos}
        return tuple(name for name in doomed if self._delete(paths[name]))

    def remove_leftovers(self, *, before_attempt: int | None = None) -> tuple[str, ...]:
        """Delete what killed writers and deletions left behind.

        Args:
            before_attempt: only of earlier attempts; None: of all, which asks that no trainer is running.
        """
        removed: list[str] = []
        for folder in (self._snapshots, self._quarantine):
            for path in (*folder.glob(f"{STAGING_PREFIX}*"), *folder.glob(f"{TRASH_PREFIX}*")):
                key = leftover_of(path.name)
                if (
                    before_attempt is None
                    or path.name.startswith(TRASH_PREFIX)
                    or (key and key[1] < before_attempt)
                ):
                    self._files.remove_tree(path)
                    removed.append(path.name)
        return tuple(removed)

    # ------------------------------------------------------------------------------------------------------

    def _folders(self) -> Paths:
        return [*_named(self._snapshots), *_named(self._quarantine)]

    def _move_to_quarantine(self, path: Path) -> None:
        target = self._quarantine / path.name
        copies = 0
        while target.exists():
            copies += 1
            target = self._quarantine / f"{path.name}.{copies}"
        try:
            self._files.make_folder(self._quarantine, exist_ok=True)
            self._files.rename(path, target)
            self._files.fsync(self._quarantine)
            self._files.fsync(self._snapshots)
        except OSError as error:
            _log.warning("%s: is marked as quarantined but could not be moved: %s", path, error)

    def _delete(self, path: Path) -> bool:
        """Delete a snapshot, unless somebody has begun to verify it."""
        # 1. it is no snapshot any more, in one step
        trash = path.with_name(TRASH_PREFIX + path.name)
        with self._lock:
            if path.name in self._in_verification:
                return False
            self._files.rename(path, trash)
        self._files.fsync(path.parent)
        # 2. its bytes go
        self._files.remove_tree(trash)
        return True


def _entries(folder: Path) -> list[Path]:
    """What has a snapshot's name; in quarantine it may carry a number behind a dot."""
    numbered = folder.name == QUARANTINE
    try:
        return [p for p in folder.iterdir() if parse_name(p.name.partition(".")[0] if numbered else p.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _named(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.is_dir() and not path.is_symlink()]


def _order(name: str) -> tuple[int, int]:
    """Order of writing, from the name alone: attempt, then step."""
    step, attempt = parse_name(name.partition(".")[0]) or (-1, -1)
    return attempt, step


def _describe(path: Path) -> SnapshotInfo | None:
    """The snapshot at ``path``; None: it is not complete. In quarantine, broken ones are described too.

    One whose manifest cannot be read now is described by its name and what lies beside it.

    Raises:
        OSError: what decides its state cannot be read now.
    """
    manifest: Manifest | None = None
    unread = why = ""
    try:
        manifest = read_manifest(path)
    except SnapshotError as error:
        unread = str(error) if error.reason == "unreadable" else ""
    state: State = "candidate"
    sequence: Any = None
    was_promoted = restorable = False
    quarantined_at: Any = 0.0
    if path.parent.name == QUARANTINE or (path / QUARANTINE_FILE).exists():
        mark = _read_json(path / QUARANTINE_FILE)
        state, why = "quarantined", str(mark.get("reason", ""))
        was_promoted = (path / PROMOTION_FILE).exists()
        # a number behind its name: another one of that name was there before
        whole = manifest is not None and parse_name(path.name) is not None
        spared = was_promoted and (mark.get("by_person") is True or mark.get("unread") is True)
        restorable = whole and (spared or mark.get("left_behind") is True)
        quarantined_at = mark.get("time")
    elif manifest is None and not unread:
        return None
    elif (path / PROMOTION_FILE).exists():
        # no guess: another order of promotion would move the stable link and what retention keeps
        promotion = _parse_json((path / PROMOTION_FILE).read_bytes())
        state, why, sequence = "promoted", f"by {promotion.get('by', '?')}", promotion.get("sequence")
    elif (path / REJECTION_FILE).exists():
        state, why = "rejected", "; ".join(map(str, _read_json(path / REJECTION_FILE).get("reasons", [])))
    attempt, step = _order(path.name)
    return SnapshotInfo(
        name=path.name,
        step=step,
        attempt=attempt,
        path=path,
        state=state,
        size=manifest.size if manifest else _size_on_disk(path),
        time=manifest.time if manifest else path.stat().st_mtime if unread else 0.0,
        why=why or unread,
        sequence=sequence if isinstance(sequence, int) else 0,
        was_promoted=was_promoted,
        restorable=restorable,
        quarantined_at=quarantined_at if isinstance(quarantined_at, (int, float)) else 0.0,
    )


def _size_on_disk(path: Path) -> int:
    """Bytes of the files below ``path``, as far as they can be seen."""
    size = 0
    with contextlib.suppress(OSError):
        for inner in path.rglob("*"):
            size += inner.lstat().st_size
    return size


def _read_json(path: Path) -> dict[str, Any]:
    """A sidecar; an unreadable one counts as empty, since that it exists is the decision."""
    try:
        return _parse_json(path.read_bytes())
    except OSError:
        return {}


def _parse_json(data: bytes) -> dict[str, Any]:
    """The object that a sidecar holds; empty where it holds none."""
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
