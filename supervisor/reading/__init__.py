"""The one reader of untrusted input: requests, settings, profiles, descriptors and events are described as
attrs classes; decoding, located errors and the JSON Schema are derived from these. Depends on no other
room."""
