"""The agent settings and their merge rules."""
