"""Erasure of a key out of tables: searched, written again, published, judged."""
