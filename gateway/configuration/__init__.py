"""What the server is configured with: variables, options, keys, addresses."""
