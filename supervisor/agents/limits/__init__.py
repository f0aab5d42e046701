"""Limits of an agent's process tree: what they are, what holds each, and what is said when one is hit."""
