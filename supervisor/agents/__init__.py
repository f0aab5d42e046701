"""Agents as operating-system processes: how they are installed, started, contained and ended.

Knows no protocol.
"""
