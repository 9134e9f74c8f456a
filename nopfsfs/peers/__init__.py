"""Fetching from other nodes over MPI."""
