"""What `scripts/fuzz.py` sends: a module for each input, and what all of them have in common."""
