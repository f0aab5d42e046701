"""Conversations: each has a nursery, a state machine and an agent."""
