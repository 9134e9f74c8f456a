"""The nodes of a cluster that keep each file. Pure."""
