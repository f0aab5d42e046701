"""`ostler agents`: the catalogue, installs, and the probe of any agent."""
