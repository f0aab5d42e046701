"""Supervises ACP agents: protocol, processes, events, journal and conversations. Knows no web framework."""
