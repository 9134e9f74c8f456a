"""Random numbers and shuffles, bit for bit. Pure."""
