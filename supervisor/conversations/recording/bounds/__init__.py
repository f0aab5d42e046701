"""Bounds of what an agent says: head and tail, blobs, pictures, sizes of events."""
