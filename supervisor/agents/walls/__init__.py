"""Walls: what an agent can reach of the machine, made by the kernel for its whole tree of processes."""
