"""The built-in agent: the OpenHands SDK behind ACP on the standard streams, as a process of its own.

It runs in an environment of its own, in which nothing of the server is installed. So it imports the standard
library and the SDK alone, and nothing here imports it.
"""
