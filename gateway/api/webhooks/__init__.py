"""Webhooks: events and states of conversations, posted to addresses that the operator names."""
