"""Warm processes for new conversations: the pool, a process, the parent that forks them."""
