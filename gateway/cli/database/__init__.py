"""`ostler database`: commands about where a state is kept."""
