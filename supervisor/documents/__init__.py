"""Small whole documents: the port, the files behind it, and how changes follow one another."""
