"""The server as a process: its start, its end, its logs, its control socket."""
