"""Settings on disk."""
