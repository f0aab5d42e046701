"""Hooks: their configuration, which of them an event triggers, and the meaning of their results.

Independent of conversations, and runs nothing.
"""
