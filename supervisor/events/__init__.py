"""The event vocabulary: attrs types by kind, and the strict codec. Knows nobody."""
