"""What an agent keeps on disk: its home and data directory, its logins and keys."""
