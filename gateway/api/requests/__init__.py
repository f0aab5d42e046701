"""What clients send, read strictly: bodies, parameters, messages, start requests."""
