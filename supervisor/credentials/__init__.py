"""Secrets: their store, their sources, and what an agent may get."""
