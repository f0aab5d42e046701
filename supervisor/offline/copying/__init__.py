"""Moves a whole state between a state directory and a PostgreSQL database."""
