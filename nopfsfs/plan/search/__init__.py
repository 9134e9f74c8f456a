"""Finding the order that opens follow. Pure."""
