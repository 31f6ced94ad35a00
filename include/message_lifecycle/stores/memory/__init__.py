"""The reference store: a log in memory."""
