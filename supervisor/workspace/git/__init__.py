"""Git for clients: what changed, diffs, commits. By `git`, which reads no configuration of others."""
