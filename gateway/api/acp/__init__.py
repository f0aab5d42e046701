"""Ostler as an ACP agent: what editors and other ACP clients get on a WebSocket.

`peer` is the JSON-RPC connection, `methods` answers the client's requests, `session` follows one
conversation for it. `parameters` reads what the client sends, `replies` has answers and errors, `offer` what
Ostler can do, `rebuilt` makes updates from events of which the agent's own are not kept, and `earlier` finds
what became of a prompt before a reconnect. Another version of the protocol is other `methods` and `replies`.
"""
