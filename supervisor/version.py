"""The version of the distribution, in one place and free of imports, so that packaging can read it."""

__version__ = "0.1.0"
