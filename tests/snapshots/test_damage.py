"""Whatever is wrong with a snapshot on the disk is detected, named, and never resumed from."""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusewire.errors import SnapshotError
from fusewire.snapshots import SnapshotStore, load_state
from fusewire.snapshots.filelayer import open_beneath
from fusewire.snapshots.hashing import FileHasher
from fusewire.snapshots.manifest import Manifest, parse_manifest
from fusewire.snapshots.verification import verify_files

from .support import each_once, failing_reads, promote, write, writer


def change_manifest(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads((path / "manifest.json").read_bytes())
    change(value)
    (path / "manifest.json").write_text(json.dumps(value))


def truncate(path: Path) -> None:
    os.truncate(path / "state.safetensors", (path / "state.safetensors").stat().st_size - 1)


def flip_bit(path: Path) -> None:
    data = bytearray((path / "state.safetensors").read_bytes())
    data[-100] ^= 4
    (path / "state.safetensors").write_bytes(data)


def flip_bit_in_tree(path: Path) -> None:
    data = (path / "state.json").read_bytes()
    (path / "state.json").write_bytes(data.replace(b"momentum", b"momentun"))


def remove_file(path: Path) -> None:
    (path / "state.json").unlink()


def symlink_file(path: Path) -> None:
    """The same bytes, but outside the snapshot."""
    outside = path.parent.parent / "outside.safetensors"
    shutil.move(path / "state.safetensors", outside)
    (path / "state.safetensors").symlink_to(outside)


def fifo(path: Path) -> None:
    (path / "state.json").unlink()
    os.mkfifo(path / "state.json")


def unlisted(path: Path) -> None:
    (path / "extra.pt").write_bytes(b"not vouched for")


def half_manifest(path: Path) -> None:
    data = (path / "manifest.json").read_bytes()
    (path / "manifest.json").write_bytes(data[: len(data) // 2])


def no_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def manifest_symlink(path: Path) -> None:
    outside = path.parent.parent / "manifest.json"
    shutil.move(path / "manifest.json", outside)
    (path / "manifest.json").symlink_to(outside)


def manifest_of(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    return lambda path: change_manifest(path, change)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a truncated file": truncate,
    "a flipped bit": flip_bit,
    "a changed tree": flip_bit_in_tree,
    "a missing file": remove_file,
    "a symlink to the outside": symlink_file,
    "a pipe": fifo,
    "half a manifest": half_manifest,
    "no manifest": no_manifest,
    "a linked manifest": manifest_symlink,
    "another format": manifest_of(lambda m: m.update(format=2)),
    "no format": manifest_of(lambda m: m.pop("format")),
    "another step": manifest_of(lambda m: m.update(step=3)),
    "another snapshot's manifest": manifest_of(lambda m: m.update(step=3, name="step-000000000003-a000")),
    "a size that lies": manifest_of(lambda m: m["files"]["state.json"].update(size=1)),
    "a hash that lies": manifest_of(lambda m: m["files"]["state.json"].update(blake3="0" * 64)),
    "a hash that is none": manifest_of(lambda m: m["files"]["state.json"].update(blake3="xyz")),
    "a path upwards": manifest_of(lambda m: m["files"].update({"../x": m["files"]["state.json"]})),
    "an absolute path": manifest_of(lambda m: m["files"].update({"/etc/hostname": m["files"]["state.json"]})),
    "a file too many in the manifest": manifest_of(lambda m: m["files"].update({"y": m["files"]["state.json"]})),
    "an array as manifest": lambda path: (path / "manifest.json").write_text("[]") and None,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_detected_named_and_never_resumed_from(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Verification and loading refuse it, the snapshot before is chosen, and the damaged one is in quarantine."""
    good, bad = write(tmp_path, 1), write(tmp_path, 2)
    path = tmp_path / "snapshots" / bad
    DAMAGES[damage](path)
    store = SnapshotStore(tmp_path)

    answer = store.verify(bad)
    assert not answer.ok
    assert all(answer.problems)
    with pytest.raises(SnapshotError):
        load_state(path)
    with caplog.at_level(logging.WARNING):
        chosen = store.newest_verified()
    assert chosen is not None
    assert chosen.name == good
    assert f"{bad} cannot be resumed from" in caplog.text
    assert store.get(bad).state == "quarantined"
    assert [info.name for info in store.candidates()] == [good]


@pytest.mark.parametrize("unread", ["state.json", "state.safetensors", "manifest.json"])
def test_what_cannot_be_read_now_is_not_damaged(tmp_path: Path, unread: str) -> None:
    """A read error is no verdict: nothing goes to quarantine, and the next look finds the snapshot whole."""
    names = [write(tmp_path, step) for step in (1, 2)]
    promote(tmp_path, names[0])
    store = SnapshotStore(tmp_path)
    with failing_reads(lambda path: path.name == unread):
        answer = store.verify(names[1])
        assert (answer.ok, answer.unreadable) == (False, True)
        assert unread in answer.problems[0]
        with pytest.raises(SnapshotError, match="cannot be read") as caught:
            store.newest_verified()
        assert (caught.value.reason, caught.value.snapshot) == ("unreadable", names[1])
        with pytest.raises(SnapshotError) as caught:
            load_state(tmp_path / "snapshots" / names[1])
        assert caught.value.reason == "unreadable"
        assert [(info.name, info.state) for info in store.list()] == [
            (names[0], "promoted"),
            (names[1], "candidate"),
        ]
    assert [info.state for info in store.list()] == ["promoted", "candidate"]
    assert store.newest_verified() == store.get(names[1])


def test_what_cannot_be_read_does_not_stand_before_the_others(tmp_path: Path) -> None:
    """Passed over by its name, it hides no older snapshot, even where nobody can tell whether it is promoted."""
    names = [write(tmp_path, step) for step in (1, 2)]
    promote(tmp_path, *names)
    promotion = tmp_path / "snapshots" / names[1] / "promotion.json"
    promotion.unlink()
    promotion.mkdir()  # EISDIR, whoever reads it
    store = SnapshotStore(tmp_path)
    with pytest.raises(SnapshotError) as caught:
        store.newest_verified()
    assert (caught.value.reason, caught.value.snapshot) == ("unreadable", names[1])
    assert store.newest_verified(excluding={names[1]}) == store.get(names[0])
    assert store.roll_back(names[0], reason="r", journal_entry=1, unread=[names[1]]) == (names[1],)
    assert store.stable() == store.active() == store.get(names[0])


def test_a_manifest_that_could_not_be_read_at_the_first_look_loses_nothing(tmp_path: Path) -> None:
    """One read error per file, wherever it falls, never makes the newest snapshot count as none."""
    name = write(tmp_path, 1)
    store = SnapshotStore(tmp_path)
    with failing_reads(each_once("manifest.json")):
        assert store.newest_verified() == store.get(name)


def test_what_is_damaged_and_unreadable_is_damaged(tmp_path: Path) -> None:
    """A file that does not hold decides, whatever else cannot be read."""
    name = write(tmp_path, 1)
    flip_bit(tmp_path / "snapshots" / name)
    with failing_reads(reads_of("state.json", after=1)):
        answer = SnapshotStore(tmp_path).verify(name)
    assert (answer.ok, answer.unreadable) == (False, False)
    assert len(answer.problems) == 2


def reads_of(name: str, *, after: int) -> Callable[[Path], bool]:
    """True for the openings of a file of that name but the first ``after``."""
    openings = itertools.count()
    return lambda path: path.name == name and next(openings) >= after


def test_a_file_that_no_hash_vouches_for_is_found(tmp_path: Path) -> None:
    """A file that the manifest leaves out makes the snapshot unusable: a trainer could load it."""
    name = write(tmp_path, 1)
    unlisted(tmp_path / "snapshots" / name)
    assert SnapshotStore(tmp_path).verify(name).problems == ("extra.pt: is not in the manifest",)


def test_a_snapshot_that_is_itself_a_symlink_does_not_count(tmp_path: Path) -> None:
    """A link with a snapshot's name, even to a whole snapshot elsewhere, is reported and never used."""
    name = write(tmp_path / "other", 1)
    (tmp_path / "run" / "snapshots").mkdir(parents=True)
    (tmp_path / "run" / "snapshots" / name).symlink_to(tmp_path / "other" / "snapshots" / name)
    store = SnapshotStore(tmp_path / "run")
    assert store.list() == []
    assert store.newest_verified() is None
    assert [problem[0] for problem in store.unusable()] == [name]


def test_a_folder_in_between_may_not_be_a_symlink(tmp_path: Path) -> None:
    """A subfolder replaced by a link to the same bytes elsewhere is refused."""
    one = writer(tmp_path)
    with one.folder(1) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "x").write_bytes(b"1")
    one.close()
    path = SnapshotStore(tmp_path).list()[0].path
    shutil.move(path / "inner", tmp_path / "elsewhere")
    (path / "inner").symlink_to(tmp_path / "elsewhere")
    assert not SnapshotStore(tmp_path).verify(path.name).ok


def test_a_path_through_a_symlinked_folder_is_not_opened(tmp_path: Path) -> None:
    """Files are opened through real folders only, whoever asks."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").write_bytes(b"1")
    (tmp_path / "linked").symlink_to("real")
    with open_beneath(tmp_path, "real/x") as file:
        assert file.read() == b"1"
    with pytest.raises(SnapshotError, match="linked is a symlink"):
        open_beneath(tmp_path, "linked/x")


def test_loading_through_the_active_link_works(tmp_path: Path) -> None:
    """A trainer may be given the link instead of the folder."""
    name = write(tmp_path, 1)
    SnapshotStore(tmp_path).set_active(name)
    assert load_state(tmp_path / "active")["optimizer"][0]["step"] == 3


def test_errors_name_the_file_and_what_is_wrong(tmp_path: Path) -> None:
    """The message of a failed load says which file it is about."""
    path = tmp_path / "snapshots" / write(tmp_path, 1)
    truncate(path)
    with pytest.raises(SnapshotError, match=r"state\.safetensors: \d+ bytes, the manifest says \d+") as caught:
        load_state(path)
    assert caught.value.reason == "damaged"


def test_unverified_loading_still_compares_sizes(tmp_path: Path) -> None:
    """verify=False skips hashes, not sizes."""
    path = tmp_path / "snapshots" / write(tmp_path, 1)
    flip_bit(path)
    load_state(path, verify=False)
    truncate(path)
    with pytest.raises(SnapshotError):
        load_state(path, verify=False)


def test_a_foreign_folder_says_that_save_did_not_write_it(tmp_path: Path) -> None:
    """load_state on a folder-form snapshot explains itself."""
    one = writer(tmp_path)
    with one.folder(1) as folder:
        (folder / "state.pt").write_bytes(b"1")
    one.close()
    with pytest.raises(SnapshotError, match="not written by save"):
        load_state(SnapshotStore(tmp_path).list()[0].path)


def test_promotion_is_not_damage(tmp_path: Path) -> None:
    """What fusewire itself lays beside the manifest does not make a snapshot unusable."""
    name = write(tmp_path, 1)
    promote(tmp_path, name)
    assert SnapshotStore(tmp_path).verify(name).ok


def blocked(data: bytes, block_size: int) -> Manifest:
    hasher = FileHasher(len(data), block_size=block_size)
    hasher.update(memoryview(data))
    return Manifest(
        name="step-000000000001-a000", step=1, attempt=0, run="r", time=0, files={"big": hasher.entry()}
    )  # fmt: skip


def test_sampling_reads_a_part_and_finds_a_zeroed_file(tmp_path: Path) -> None:
    """A sampled verification reads about what it may, sees a file of zeros, and always sees a wrong size."""
    data = random.Random(1).randbytes(10_000)
    manifest = blocked(data, 1000)
    (tmp_path / "big").write_bytes(data)
    answer = verify_files(tmp_path, manifest, mode="sampled", sample_bytes=3000)
    assert answer.ok
    assert answer.bytes_read == 3000
    (tmp_path / "big").write_bytes(bytes(10_000))
    assert not verify_files(tmp_path, manifest, mode="sampled", sample_bytes=3000).ok
    (tmp_path / "big").write_bytes(data[:-1])
    assert not verify_files(tmp_path, manifest, mode="sampled", sample_bytes=1).ok


def test_sampling_comes_around_to_every_block(tmp_path: Path) -> None:
    """Repeated samples reach a single damaged block."""
    data = bytearray(random.Random(1).randbytes(10_500))
    manifest = blocked(bytes(data), 1000)
    data[-1] ^= 1
    (tmp_path / "big").write_bytes(data)
    rng = random.Random(0)
    answers = [verify_files(tmp_path, manifest, mode="sampled", sample_bytes=2000, rng=rng).ok for _ in range(60)]
    assert False in answers
    assert True in answers
    assert not verify_files(tmp_path, manifest).ok


@settings(max_examples=80, deadline=None)
@given(data=st.binary(min_size=1, max_size=5000), pieces=st.integers(1, 700), block=st.integers(1, 900))
def test_hashes_do_not_depend_on_how_the_bytes_arrive(data: bytes, pieces: int, block: int) -> None:
    """Whole-file and block hashes are the same for any chunking."""
    whole, parts = (FileHasher(len(data), block_size=block) for _ in range(2))
    whole.update(memoryview(data))
    for start in range(0, len(data), pieces):
        parts.update(memoryview(data)[start : start + pieces])
    assert whole.entry() == parts.entry()
    assert len(whole.entry().blocks) == -(-len(data) // block)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
GOOD = blocked(b"abc", 2).to_json()


@settings(max_examples=300, deadline=None)
@given(
    key=st.sampled_from([*GOOD, "files.big", "files.big.size", "files.big.blake3", "files.big.blocks"]), value=JSON
)
def test_any_manifest_is_read_or_refused(key: str, value: Any) -> None:
    """Whatever stands under a key, parsing gives a manifest that says the same or SnapshotError, nothing else."""
    changed = json.loads(json.dumps(GOOD))
    *path, last = key.split(".")
    inner = changed
    for part in path:
        inner = inner[part]
    inner[last] = value
    try:
        manifest = parse_manifest(changed, "m")
    except SnapshotError:
        return
    assert json.dumps(parse_manifest(manifest.to_json(), "m").to_json()) == json.dumps(manifest.to_json())


def test_a_copied_snapshot_loads_from_anywhere(tmp_path: Path) -> None:
    """A snapshot that was copied out of the run directory, under any name, can be loaded."""
    path = tmp_path / "snapshots" / write(tmp_path, 1)
    shutil.copytree(path, tmp_path / "mine")
    assert np.array_equal(load_state(tmp_path / "mine")["model"]["bias"], np.zeros(16))
