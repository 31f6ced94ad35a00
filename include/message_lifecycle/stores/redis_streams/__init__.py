"""Topics as Redis streams: one stream a partition, all keys of a topic in one slot of a cluster."""
