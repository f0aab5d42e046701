"""Commands of operators, each one request and one answer: `ps`, `status`, `settings` and others."""
