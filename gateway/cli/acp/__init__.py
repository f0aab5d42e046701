"""`ostler acp`: ACP on standard streams, for editors."""
