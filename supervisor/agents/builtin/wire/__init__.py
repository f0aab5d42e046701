"""The protocol of the program: its messages, and how what the SDK says becomes some."""
