"""Skills and sub-agents: Markdown files with properties at their head."""
