"""Several servers over one PostgreSQL."""
