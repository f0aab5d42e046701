"""The statement that stores a batch: fenced, and one for all conversations of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import Any

import attrs

from supervisor.journal.port import Append, LogHandle, merged
from supervisor.journal.postgres.values import Bigints, Booleans, Byteas, Texts
from supervisor.journal.rows import Blob, RecordUpdate, Stored
from supervisor.journal.storage.schema import BLOCK_EVENTS

_FENCE = """
WITH fence AS (
    UPDATE heads SET last_seq = v.last, live = coalesce(v.live, heads.live)
    FROM unnest(%(keys)s, %(generations)s, %(befores)s, %(lasts)s, %(lives)s)
        AS v (key, generation, before, last, live)
    WHERE heads.key = v.key AND heads.owner = %(owner)s AND heads.generation = v.generation
        AND heads.last_seq = v.before
    RETURNING heads.key
)"""

_EVENTS = """, stored AS (
    INSERT INTO events (conversation, seq, id, kind, source, timestamp, body, updates)
    SELECT v.* FROM unnest(
        %(event_keys)s, %(seqs)s, %(ids)s, %(kinds)s, %(sources)s, %(timestamps)s, %(bodies)s, %(updates)s
    ) AS v (key, seq, id, kind, source, timestamp, body, updates)
    JOIN fence ON fence.key = v.key
)"""

_RECORDS = """, recorded AS (
    UPDATE conversations SET record = v.record, status = v.status, updated_at = v.updated_at,
        title = coalesce(v.title, conversations.title), epoch = %(owner)s
    FROM unnest(%(record_keys)s, %(records)s, %(statuses)s, %(updated)s, %(titles)s)
        AS v (key, record, status, updated_at, title)
    JOIN fence ON fence.key = v.key
    WHERE conversations.key = v.key
)"""

_BLOBS = """, attached AS (
    INSERT INTO blobs (conversation, id, media_type, data)
    SELECT v.* FROM unnest(%(blob_keys)s, %(blob_ids)s, %(media_types)s, %(blobs)s)
        AS v (key, id, media_type, data)
    JOIN fence ON fence.key = v.key
    ON CONFLICT (conversation, id) DO UPDATE SET media_type = excluded.media_type, data = excluded.data
)"""

# Counts the kinds of whole blocks, of which some events are in the table already and the others come with
# this statement, which does not see them there.
COUNTED = """
INSERT INTO kind_counts (conversation, kind, block, events)
SELECT key, kind, block, sum(events) OVER (PARTITION BY key, kind ORDER BY block) + coalesce((
    SELECT before.events FROM kind_counts AS before
    WHERE before.conversation = found.key AND before.kind = found.kind AND before.block < found.block
    ORDER BY before.block DESC LIMIT 1
), 0)
FROM (
    SELECT key, block, kind, sum(events) AS events FROM (
        SELECT v.* FROM unnest(%(new_keys)s, %(new_blocks)s, %(new_kinds)s, %(new_counts)s)
            AS v (key, block, kind, events)
        UNION ALL
        SELECT v.key, v.block, events.kind, count(*)
        FROM unnest(%(old_keys)s, %(old_blocks)s, %(old_firsts)s, %(old_lasts)s)
            AS v (key, block, first, last)
        JOIN events ON events.conversation = v.key AND events.seq BETWEEN v.first AND v.last
        GROUP BY v.key, v.block, events.kind
    ) AS parts (key, block, kind, events) GROUP BY key, block, kind
) AS found
{}
ON CONFLICT DO NOTHING
"""


@attrs.define(kw_only=True)
class Share:
    """What a batch has of one conversation. `before`: the last event that is stored already."""

    handle: LogHandle
    key: int
    before: int
    last: int
    rows: list[Stored] = attrs.field(factory=list)
    record: RecordUpdate | None = None
    blobs: dict[str, Blob] = attrs.field(factory=dict)

    def without(self, last_seq: int) -> Share:
        """The rest, where the events up to this one are stored."""
        rows = [row for row in self.rows if row.seq > last_seq]
        return attrs.evolve(self, before=last_seq, rows=rows)


def shares(appends: Iterable[Append]) -> list[Share]:
    """Join the appends of each conversation. Those of a broken log are left out."""
    found: dict[int, Share] = {}
    for append in appends:
        handle = append.handle
        if handle.broken is not None:
            continue
        key = handle.key
        assert key is not None
        share = found.get(key)
        if share is None:
            before = append.rows[0].seq - 1 if append.rows else append.last_seq
            share = found[key] = Share(handle=handle, key=key, before=before, last=before)
        share.last = append.last_seq
        share.rows += append.rows
        if append.record is not None:
            share.record = merged(share.record, append.record)
        for blob in append.blobs:
            share.blobs[blob.id] = blob
    return list(found.values())


@cache
def _statement(events: bool, records: bool, blobs: bool, blocks: bool) -> bytes:
    parts = [
        _FENCE,
        _EVENTS if events else "",
        _RECORDS if records else "",
        _BLOBS if blobs else "",
        f", counted AS ({COUNTED.format('JOIN fence USING (key)')})" if blocks else "",
        " SELECT key FROM fence",
    ]
    return "".join(parts).encode()


def statement(
    batch: Sequence[Share], owner: int, live: Collection[str], *, keeps_updates: bool
) -> tuple[bytes, dict[str, Any]]:
    """The statement that stores these, and returns the keys of those that this server still has. `live`:
    statuses of conversations with work."""
    values: dict[str, Any] = {
        "owner": owner,
        "keys": Bigints([each.key for each in batch]),
        "generations": Bigints([each.handle.generation for each in batch]),
        "befores": Bigints([each.before for each in batch]),
        "lasts": Bigints([each.last for each in batch]),
        "lives": Booleans([None if each.record is None else each.record.status in live for each in batch]),
    }
    rows = [row for each in batch for row in each.rows]
    if rows:
        values |= {
            "event_keys": Bigints([each.key for each in batch for _ in each.rows]),
            "seqs": Bigints([row.seq for row in rows]),
            "ids": Texts([row.id for row in rows]),
            "kinds": Texts([row.kind for row in rows]),
            "sources": Texts([row.source for row in rows]),
            "timestamps": Texts([row.timestamp for row in rows]),
            "bodies": Byteas([row.body for row in rows]),
            "updates": Byteas([(row.updates or None) if keeps_updates else None for row in rows]),
        }
    records = [(each.key, each.record) for each in batch if each.record is not None]
    if records:
        values |= {
            "record_keys": Bigints([key for key, _ in records]),
            "records": Byteas([record.record for _, record in records]),
            "statuses": Texts([record.status for _, record in records]),
            "updated": Texts([record.updated_at for _, record in records]),
            "titles": Texts([record.title for _, record in records]),
        }
    blobs = [(each.key, blob) for each in batch for blob in each.blobs.values()]
    if blobs:
        values |= {
            "blob_keys": Bigints([key for key, _ in blobs]),
            "blob_ids": Texts([blob.id for _, blob in blobs]),
            "media_types": Texts([blob.media_type for _, blob in blobs]),
            "blobs": Byteas([blob.data for _, blob in blobs]),
        }
    whole = [each for each in batch if makes_block(each)]
    if whole:
        values |= blocks(whole)
    return _statement(bool(rows), bool(records), bool(blobs), bool(whole)), values


def makes_block(share: Share) -> bool:
    """Whether a block of events becomes whole with this share."""
    return (share.last + 1) // BLOCK_EVENTS > (share.before + 1) // BLOCK_EVENTS


def blocks(batch: Iterable[Share]) -> dict[str, Any]:
    """The parameters of `COUNTED`: the blocks that these make whole."""
    new: Counter[tuple[int, int, str]] = Counter()
    old: list[tuple[int, int, int, int]] = []
    for each in batch:
        first, end = (each.before + 1) // BLOCK_EVENTS, (each.last + 1) // BLOCK_EVENTS
        new.update(
            (each.key, row.seq // BLOCK_EVENTS, row.kind)
            for row in each.rows
            if row.seq // BLOCK_EVENTS < end
        )
        old.append((each.key, first, first * BLOCK_EVENTS, each.before))
    return counted(old, new)


def counted(
    old: Sequence[tuple[int, int, int, int]], new: Counter[tuple[int, int, str]] | None = None
) -> dict[str, Any]:
    """The parameters of `COUNTED`. `old`: conversation, block, first and last number of events that are in
    the table. `new`: how many events of a conversation, block and kind are not there yet."""
    keys = list(new or ())
    return {
        "new_keys": Bigints([key for key, _, _ in keys]),
        "new_blocks": Bigints([block for _, block, _ in keys]),
        "new_kinds": Texts([kind for _, _, kind in keys]),
        "new_counts": Bigints(list((new or {}).values())),
        "old_keys": Bigints([each[0] for each in old]),
        "old_blocks": Bigints([each[1] for each in old]),
        "old_firsts": Bigints([each[2] for each in old]),
        "old_lasts": Bigints([each[3] for each in old]),
    }
