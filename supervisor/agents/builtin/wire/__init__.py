"""The protocol of the program: its messages, and how the SDK's events become messages."""
