"""Where messages go that are archived instead of deleted (RET-7)."""
