"""The built-in agent: it reports its events itself, and supports Ostler's extension requests
(docs/built-in-agent.md)."""
