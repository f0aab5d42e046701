"""Commands that clients run, their output and their events."""
