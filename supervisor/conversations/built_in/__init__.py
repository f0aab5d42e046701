"""The built-in agent: it tells its events itself, and knows requests of Ostler's own
(docs/built-in-agent.md)."""
