"""Who calls, in order: configuration, wiring, the verbs, the command."""
