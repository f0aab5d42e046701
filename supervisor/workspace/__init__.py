"""What a client does in workspaces beside agents: run commands, use files, look at git. Knows no HTTP."""
