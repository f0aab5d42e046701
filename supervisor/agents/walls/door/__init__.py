"""The network door: the only way out of an agent whose network namespace has nothing but a loopback."""
