"""Several servers over one database: who is alive, which of them has a conversation, what happens when one
dies.

A conversation has at most one owner. Leases are judged by the database's clock alone, and each commit of the
journal is fenced by them (`supervisor/journal/postgres`). Imported with OSTLER_DATABASE alone.
"""
