"""PostgreSQL: its address, connections, schema and errors. Imported with OSTLER_DATABASE alone.

The rooms above keep their own tables: the journal its events, the machines their servers. All of them are in
one schema, so that its version is one number.
"""
