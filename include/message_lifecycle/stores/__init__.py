"""Who does: each store carries out plans on one kind of log."""
