-- A journal as schema version 1 left it. Never changed: files like this one exist.
PRAGMA journal_mode = WAL;
CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version VALUES (1);
CREATE TABLE server (epoch INTEGER NOT NULL);
INSERT INTO server (epoch) VALUES (7);
CREATE TABLE conversations (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    record BLOB NOT NULL,
    status TEXT NOT NULL,
    title TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    parent_id TEXT,
    epoch INTEGER NOT NULL,
    lease_owner TEXT,
    lease_generation INTEGER NOT NULL DEFAULT 0,
    lease_expires TEXT
);
CREATE INDEX conversations_by_creation ON conversations (created_at, key);
CREATE INDEX conversations_by_update ON conversations (updated_at, key);
CREATE TABLE events (
    conversation INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    source TEXT NOT NULL,
    timestamp TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX events_by_seq ON events (conversation, seq);
CREATE UNIQUE INDEX events_by_id ON events (conversation, id);
CREATE TABLE blobs (
    conversation INTEGER NOT NULL,
    id TEXT NOT NULL,
    media_type TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (conversation, id)
);
INSERT INTO conversations (id, record, status, created_at, updated_at, epoch)
    VALUES ('old', X'7B7D', 'idle', '2026-11-21T08:00:00.000000Z', '2026-11-21T08:00:00.000000Z', 7);
INSERT INTO events VALUES (1, 0, 'e-old', 'MessageEvent', 'user', '2026-11-21T08:00:00.000000Z', X'7B7D');
INSERT INTO blobs VALUES (1, 'b', 'text/plain', X'00');
