"""What an agent starts with: program, environment, credentials, home, files."""
