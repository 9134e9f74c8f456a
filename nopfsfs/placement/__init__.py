"""Which node of a cluster keeps which file. Pure."""
