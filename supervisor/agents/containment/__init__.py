"""Which processes belong to an agent, and how they are all ended: tags, markers, control groups."""
