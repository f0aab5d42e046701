"""`ostler doctor`: what is wrong with this machine and this configuration."""
