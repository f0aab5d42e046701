"""The interface of the OpenHands agent server: its routes, sockets and webhooks, and what they share."""
