"""What the SDK and its libraries are given and relieved of, so that they behave in this program."""
