"""A server for each conversation: OSTLER_PROVISION starts it, and stops it when it has left.

Imported with OSTLER_PROVISION alone, or in a server that was started so.
"""
