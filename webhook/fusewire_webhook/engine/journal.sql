-- The journal, schema version 1 (PRAGMA user_version). Rows are only ever added.
CREATE TABLE journal (
    seq     INTEGER PRIMARY KEY,
    run     TEXT NOT NULL CHECK (run <> ''),
    at      REAL NOT NULL,
    kind    TEXT NOT NULL CHECK (kind <> ''),
    payload TEXT NOT NULL CHECK (json_valid(payload))
) STRICT;

CREATE INDEX journal_run ON journal (run, seq);

CREATE TRIGGER journal_no_update BEFORE UPDATE ON journal
BEGIN
    SELECT RAISE(ABORT, 'the journal is append-only');
END;

CREATE TRIGGER journal_no_delete BEFORE DELETE ON journal
BEGIN
    SELECT RAISE(ABORT, 'the journal is append-only');
END;

PRAGMA user_version = 1;
