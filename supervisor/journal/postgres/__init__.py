"""The journal in PostgreSQL, for several servers. Imported with OSTLER_DATABASE alone.

Each conversation has a head: owner, generation, last number. Every commit moves the heads that it writes to,
only where they are as this server knows them, and stores events only behind heads that moved. So a server
that was stopped, and whose conversations another one has claimed meanwhile, writes nothing.
"""
