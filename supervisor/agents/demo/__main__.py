"""`python -m supervisor.agents.demo`: speak ACP on standard input and output until the input ends."""

from __future__ import annotations

from supervisor.agents.demo.agent import DemoAgent

if __name__ == "__main__":
    DemoAgent().serve()
