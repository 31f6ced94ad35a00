"""Values only: no I/O, no clock, no environment, standard library only."""
