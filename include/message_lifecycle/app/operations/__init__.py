"""The operations as the verbs use them: one module for each operation. `registry` finds them."""
