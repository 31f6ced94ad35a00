"""Who decides: pure functions of facts, policy and `as_of`. No I/O, no clock."""
