"""The state of a conversation and its limits: record, queue, statuses, deadlines and errors."""
