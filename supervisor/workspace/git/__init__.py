"""Git for clients: changes, diffs, commits. Runs `git` without the repository's own configuration."""
