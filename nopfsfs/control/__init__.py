"""A mount seen from outside: find it, start it, ask it, take it over."""
