"""A remote agent: its process here is `python -m supervisor.agents.remote`, which connects to its WebSocket.

So an agent elsewhere is supervised like any other. The server imports of this only the settings of that
process; the program imports nothing of the server.
"""
