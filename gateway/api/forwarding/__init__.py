"""Any server answers: what another one has is asked of it, and its answer is passed on.

Imported with OSTLER_DATABASE alone. The client is authenticated here; the owner trusts this server by a key
of the servers' own. A request from a server is answered or refused, and never forwarded again.
"""
