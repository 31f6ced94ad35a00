"""Who remembers: plans, approvals, outcomes, consumers."""
