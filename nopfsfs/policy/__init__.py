"""Which files this node fetches, pushes, drops and evicts next. Pure."""
