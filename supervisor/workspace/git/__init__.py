"""Git for clients: what changed, diffs, commits. By the `git` command, which reads no configuration of others."""
