"""What a conversation is and what bounds it: its record, its queue, its statuses, deadlines and errors."""
