"""A small agent that comes with Ostler: no network, no key, the whole protocol on show.

It is an ACP agent like any other, run as `python -m supervisor.agents.demo`, and uses the standard library
alone.
"""
