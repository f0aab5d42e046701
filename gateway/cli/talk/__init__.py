"""`ostler run` and `ostler chat`: a conversation at a terminal."""
