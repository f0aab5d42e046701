"""The durable log and its cursors. Knows only bytes, ids and sequence numbers."""
