"""What an agent keeps: its home and data directory, its logins and keys."""
