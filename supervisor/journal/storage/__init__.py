"""The database of the journal: schema, the thread that writes, copies, deletions."""
