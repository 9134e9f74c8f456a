"""The orders of each framework, bit for bit. Pure."""
