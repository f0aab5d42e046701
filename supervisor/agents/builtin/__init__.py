"""The built-in agent: the OpenHands SDK behind ACP on the standard streams, as a separate process.

It runs in a separate environment, in which nothing of the server is installed. So it imports only the
standard library and the SDK, and nothing outside imports it.
"""
