"""The pyfuse3 adapter, the server process, mounting and unmounting. Knows no plans."""
