"""Which processes belong to an agent, and how all of them end: tags, markers, control groups."""
