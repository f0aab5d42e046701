"""Pages for people: static files that the package ships, and nothing of what they show."""
