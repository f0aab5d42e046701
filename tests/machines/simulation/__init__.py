"""Many servers over one database, simulated: the rules of leases are the real ones, the database is a model.

Conversations are counts, since a million of them cannot be a million tasks.
"""
