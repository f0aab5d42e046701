"""Reads the log back: prompts, the inbox, recovery, transcripts."""
