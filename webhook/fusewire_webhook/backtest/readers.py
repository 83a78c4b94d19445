"""Readers of recorded runs: CSV, JSON exports (``trainer_state.json``, W&B history), TensorBoard event files."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from fusewire_webhook.backtest.eventfiles import event_files, rows_of
from fusewire_webhook.backtest.model import LogError, RunLog
from fusewire_webhook.backtest.tables import TRAINER_STATE, run_log

INDEX = "index.csv"
"""In a folder of logs: ``id, algorithm, source, label, first_bad_row`` of each."""

TRAINER_STATE_FILE = "trainer_state.json"
"""Of a Hugging Face trainer, in its output folder or in ``checkpoint-<step>`` below."""

Mapped = Mapping[str, str]


def read(path: Path, *, mapping: Mapped | None = None) -> RunLog:
    """The run recorded in one file, or in a folder of TensorBoard event files.

    Raises:
        LogError: it cannot be read as what its name says.
    """
    reader = _reader(path)
    if reader is None:
        raise LogError(f"{path}: not a .csv, .json, .jsonl or TensorBoard event file")
    try:
        return reader(path, mapping)
    except OSError as error:
        raise LogError(f"{path}: {error.strerror or error}") from error
    except (ValueError, OverflowError, RecursionError, csv.Error) as error:
        raise LogError(f"{path}: cannot be read: {error}") from error


def find(paths: Iterable[Path]) -> tuple[list[tuple[Path, dict[str, str]]], list[LogError]]:
    """Every log under ``paths`` with what an index says of it, and the paths that lead to none.

    A folder stands for the logs in it.
    """
    found: list[tuple[Path, dict[str, str]]] = []
    errors: list[LogError] = []
    for path in paths:
        try:
            found += _under(path)
        except LogError as error:
            errors.append(error)
        except OSError as error:
            errors.append(LogError(f"{path}: {error.strerror or error}"))
    return found, errors


def labelled(log: RunLog, facts: Mapping[str, str]) -> RunLog:
    """``log`` with what an index says of it.

    Raises:
        LogError: the index's first bad row is no row of the log.
    """
    text = facts.get("first_bad_row", "").strip()
    if text and not (text.isdigit() and int(text) < log.rows):
        raise LogError(f"{log.id}: first_bad_row {text!r} of {INDEX} is no row of it (0 to {log.rows - 1})")
    return dataclasses.replace(
        log,
        algorithm=facts.get("algorithm", log.algorithm),
        source=facts.get("source", log.source),
        label=facts.get("label", log.label),
        first_bad_row=int(text) if text else None,
    )


def _name(path: Path) -> str:
    """What a log is called: its file, or the folder of its run where every run's file has the same name."""
    if path.is_dir():
        return path.resolve().name
    if path.name == TRAINER_STATE_FILE:
        run = path.resolve().parent
        return run.parent.name if run.name.startswith("checkpoint-") else run.name
    return path.resolve().parent.name if "tfevents" in path.name else path.stem


def _reader(path: Path) -> Callable[[Path, Mapped | None], RunLog] | None:
    if path.is_dir() or "tfevents" in path.name:
        return _read_tensorboard
    return {".csv": _read_csv, ".json": _read_json, ".jsonl": _read_jsonl}.get(path.suffix)


def _under(path: Path) -> list[tuple[Path, dict[str, str]]]:
    if not path.exists():
        raise LogError(f"{path}: no such file or folder")
    inside = _logs_in(path) if path.is_dir() else [path]
    if not inside:
        raise LogError(f"{path}: holds no .csv, .json, .jsonl or TensorBoard event file")
    index = _index(path if path.is_dir() else path.parent)
    return [(log, index.get(_name(log), {})) for log in inside]


def _logs_in(folder: Path) -> list[Path]:
    if (run := _run_in(folder)) is not None:
        return [run]
    entries = sorted(folder.iterdir())
    files = [
        path
        for path in entries
        if path.is_file()
        and path.name != INDEX
        and path.suffix in (".csv", ".json", ".jsonl")
        and not (path.suffix == ".json" and _is_verdicts(path))
    ]
    return files + [run for path in entries if path.is_dir() and (run := _run_in(path)) is not None]


def _is_verdicts(path: Path) -> bool:
    """Whether it is what a backtest has written with ``--json``: about logs, and none itself."""
    with contextlib.suppress(OSError, ValueError, RecursionError), _opened(path) as file:
        document = json.load(file)
        return isinstance(document, dict) and {"time", "rules", "errors"} <= document.keys()
    return False


def _run_in(folder: Path) -> Path | None:
    """The log of a folder that belongs to one run: of event files, or of a Hugging Face trainer."""
    if event_files(folder):
        return folder
    states = [folder / TRAINER_STATE_FILE, *(path / TRAINER_STATE_FILE for path in folder.glob("checkpoint-*"))]
    # each holds the history up to its own step
    return max(filter(Path.is_file, states), key=_checkpoint, default=None)


def _checkpoint(state: Path) -> float:
    """Step of the checkpoint that a trainer's state belongs to; one that belongs to none is the newest."""
    number = state.parent.name.removeprefix("checkpoint-")
    return float(number) if number.isdigit() else math.inf


def _index(folder: Path) -> dict[str, dict[str, str]]:
    path = folder / INDEX
    if not path.is_file():
        return {}
    with _opened(path) as file:
        reader = csv.DictReader(file)
        try:
            if "id" not in (reader.fieldnames or ()):
                raise LogError(f"{path}: has no column id; it holds id, algorithm, source, label, first_bad_row")
            return {row["id"]: {key: value or "" for key, value in row.items() if key} for row in reader}
        except csv.Error as error:
            raise LogError(f"{path}: line {reader.line_num}: {error}") from error


def _opened(path: Path) -> TextIO:
    """As text. A mark of the byte order is skipped, and a byte that is no UTF-8 spoils its own cell only."""
    return path.open(newline="", encoding="utf-8-sig", errors="replace")


def _read_csv(path: Path, mapping: Mapped | None) -> RunLog:
    with _opened(path) as file:
        reader = csv.reader(file)
        header = [name.strip() for name in next(reader, [])]
        if len(set(header)) < len(header):
            raise LogError(f"{path}: two columns have the same name")
        cells: dict[str, list[str]] = {name: [] for name in header}
        columns = list(cells.values())
        try:
            for row in reader:
                for number, column in enumerate(columns):
                    column.append(row[number] if number < len(row) else "")
        except csv.Error as error:
            raise LogError(f"{path}: line {reader.line_num}: {error}") from error
    return run_log(_name(path), header, cells, mapping=mapping)


def _read_json(path: Path, mapping: Mapped | None) -> RunLog:
    with _opened(path) as file:
        try:
            document = json.load(file)
        except ValueError as error:
            raise LogError(f"{path}: not JSON: {error}") from error
    house = TRAINER_STATE if isinstance(document, dict) and "log_history" in document else {}
    if isinstance(document, dict):
        document = document.get("log_history", document.get("history"))
    if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
        raise LogError(
            f"{path}: holds neither a list of rows nor one under log_history (trainer_state.json) or history"
        )
    return _from_rows(path, document, mapping, house=house)


def _read_jsonl(path: Path, mapping: Mapped | None) -> RunLog:
    rows: list[dict[str, Any]] = []
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise LogError(f"{path}: line {number}: not JSON: {error}") from error
    if not all(isinstance(row, dict) for row in rows):
        raise LogError(f"{path}: a line is no JSON object")
    return _from_rows(path, rows, mapping)


def _from_rows(
    path: Path, rows: list[dict[str, Any]], mapping: Mapped | None, *, house: Mapped = MappingProxyType({})
) -> RunLog:
    header = list(dict.fromkeys(name for row in rows for name in row))
    cells = {name: [row.get(name) for row in rows] for name in header}
    return run_log(_name(path), header, cells, mapping=mapping, house=house)


def _read_tensorboard(path: Path, mapping: Mapped | None) -> RunLog:
    rows = rows_of(path)
    header = list(dict.fromkeys(tag for row in rows for tag in row))
    return run_log(_name(path), header, {tag: [row.get(tag) for row in rows] for tag in header}, mapping=mapping)
