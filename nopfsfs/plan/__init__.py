"""The samples that will be read, and their order. Pure."""
