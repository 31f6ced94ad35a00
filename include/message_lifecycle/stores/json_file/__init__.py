"""A topic as one file of JSON lines."""
