"""Start ranks: hosts and options in, one mpirun out, again after a failure where that is wanted."""
