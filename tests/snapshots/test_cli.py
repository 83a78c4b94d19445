"""``fusewire snapshots`` and ``fusewire verify`` on a real run directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusewire.snapshots import SnapshotStore
from fusewire_webhook.cli import main

from .support import failing_reads, promote, write


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with a snapshot in every state."""
    folder = tmp_path / "cartpole"
    names = [write(folder, step) for step in (1, 2, 3, 4)]
    later = write(folder, 5)
    promote(folder, names[0])
    store = SnapshotStore(folder)
    store.set_active(names[0])
    store.reject(names[1], ["[KlSpike] fired"])
    store.quarantine([names[2]], reason="diverged at 3", journal_entry=1)
    (folder / "snapshots" / later / "manifest.json").write_text("{")
    return folder


def test_the_table_says_which_are_stable_and_why(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each snapshot is a line with step, attempt, state, size and reason, whole also in a pipe."""
    assert main(["snapshots", "cartpole", "--runs", str(run_dir.parent)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["step", "attempt", "size", "state", "written", "name", "why"]
    assert [line.split()[0] for line in lines[1:5]] == ["1", "2", "3", "4"]
    assert "promoted ← stable ← active" in lines[1]
    assert "by gate" in lines[1]
    assert "kB" in lines[1]
    assert "rejected" in lines[2]
    assert "[KlSpike] fired" in lines[2]
    assert "diverged at 3" in lines[3]
    assert "candidate" in lines[4]
    assert "step-000000000004-a000" in lines[4]
    assert "unusable" in lines[5]
    assert "no JSON" in lines[5]


def test_json_is_for_programs(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints one object a snapshot."""
    assert main(["snapshots", "cartpole", "--json", "--runs", str(run_dir.parent)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["state"] for row in rows] == ["promoted", "rejected", "quarantined", "candidate", "unusable"]
    assert rows[0]["links"] == ["stable", "active"]


def test_verify_finds_the_damaged_ones(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a name all are verified; what does not hold is named, and the exit code tells."""
    path = run_dir / "snapshots" / "step-000000000004-a000" / "state.json"
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["verify", "cartpole", "--runs", str(run_dir.parent)]) == 1
    out = capsys.readouterr().out
    assert "step-000000000001-a000: ok" in out
    assert "step-000000000004-a000: DAMAGED" in out
    assert "state.json:" in out
    assert "step-000000000005-a000: DAMAGED" in out
    for one in ("step-000000000001-a000", "1"):
        assert main(["verify", "cartpole", one, "--sampled", "--runs", str(run_dir.parent)]) == 0


def test_what_cannot_be_read_is_not_called_damaged(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A snapshot whose manifest cannot be read is listed once, with the reason; verifying it tells and fails."""
    name = "step-000000000004-a000"
    with failing_reads(lambda path: path.parts[-2:] == (name, "manifest.json")):
        assert main(["snapshots", "cartpole", "--json", "--runs", str(run_dir.parent)]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["state"] for row in rows] == ["promoted", "rejected", "quarantined", "candidate", "unusable"]
        assert "cannot be read (Input/output error)" in rows[3]["why"]
        assert main(["verify", "cartpole", name, "--runs", str(run_dir.parent)]) == 1
    assert f"{name}: CANNOT BE READ" in capsys.readouterr().out


def test_bad_input_is_one_line(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown run or snapshot is an error that names it."""
    assert main(["snapshots", "nobody", "--runs", str(run_dir.parent)]) == 2
    assert "no such run" in capsys.readouterr().err
    assert main(["verify", "cartpole", "step-000000000009-a000", "--runs", str(run_dir.parent)]) == 1
    assert "no such snapshot" in capsys.readouterr().err
