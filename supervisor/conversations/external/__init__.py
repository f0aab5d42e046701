"""Agents that know ACP alone."""
