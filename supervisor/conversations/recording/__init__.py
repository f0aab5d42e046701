"""From the agent's updates to events of the journal: translation, truncation, usage."""
