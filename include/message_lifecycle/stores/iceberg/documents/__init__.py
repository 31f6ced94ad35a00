"""Documents of a topic on two tables: their changes, and beside them their snapshots (SNP-1 to SNP-10)."""
