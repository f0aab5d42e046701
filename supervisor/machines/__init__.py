"""Several servers over one database: who is alive, who owns a conversation, who takes over.

Nothing imports this room where one server keeps its state in files.
"""
