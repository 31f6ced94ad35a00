"""Two-pass compaction of a topic's log into its compacted table (PIP-14; CMP-1 to CMP-8)."""
