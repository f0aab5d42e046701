"""An agent as an operating-system process. Knows no protocol."""
