"""What clients do in workspaces themselves: run commands, use files, look at git. Independent of HTTP."""
