"""What was said, read back from the log: prompts, the inbox, what was cut off, transcripts."""
