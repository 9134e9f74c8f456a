"""The peer process: other nodes over MPI."""
