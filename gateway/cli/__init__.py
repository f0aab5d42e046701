"""The `ostler` command."""
