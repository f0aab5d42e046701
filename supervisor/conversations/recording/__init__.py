"""From what an agent says to events of the journal: translation, truncation, figures."""
