"""The routes of REST, one module for each group of paths."""
