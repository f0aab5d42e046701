"""Adaptations of the SDK and its libraries to this program."""
