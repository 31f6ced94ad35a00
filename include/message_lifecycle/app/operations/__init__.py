"""What the verbs ask of each operation: one module an operation, found by `registry`."""
