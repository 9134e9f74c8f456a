"""Mounts as figures, seen from outside: metrics, their exporter, lines of statistics, and `nopfsfs.Mount`."""
