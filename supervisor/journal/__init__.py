"""The durable log and its cursors. Knows only bytes, ids and sequence numbers.

One SQLite file holds every conversation: a record (opaque bytes plus the columns that lists are ordered and
filtered by), its events and its blobs. Events carry a gapless sequence number per conversation, are committed
in batches by one thread, and become visible to cursors only once they are committed.
"""
