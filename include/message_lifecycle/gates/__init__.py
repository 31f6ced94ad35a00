"""Who judges: what a staged deletion is held to, declared once and evaluated by Great Expectations or in plain Python."""
