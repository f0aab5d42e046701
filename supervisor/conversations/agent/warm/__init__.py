"""Processes that wait for a conversation: the pool, one of them, the parent of forks."""
