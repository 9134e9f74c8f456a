"""Following one access stream whose order is known. Pure."""
