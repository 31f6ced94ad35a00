"""Erasure of a key out of tables: every file that any ref reads, and all history beside it (DEL-7, CMP-8)."""
