"""Tool calls: from announcements, questions and results to events."""
