"""The supervisor, its control socket, metrics and the run report."""
