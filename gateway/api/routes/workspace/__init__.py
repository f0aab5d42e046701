"""Routes of what clients do in workspaces: files, git, commands, skills."""
