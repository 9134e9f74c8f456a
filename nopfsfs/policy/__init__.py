"""The choice of the files that this node fetches, pushes, drops and evicts next. Pure."""
