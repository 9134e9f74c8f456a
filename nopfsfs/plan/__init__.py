"""Which samples will be read, in which order. Pure."""
