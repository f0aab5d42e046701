"""A conversation as clients read it, and how its changes are published."""
