"""The gate: checks of a staged change, declared once and evaluated by Great Expectations or in plain Python."""
