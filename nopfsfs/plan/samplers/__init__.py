"""What each framework reads, bit for bit. Pure."""
