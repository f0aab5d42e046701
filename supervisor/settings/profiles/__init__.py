"""Profiles of agents and language models, and how they become settings."""
