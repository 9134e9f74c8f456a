"""The life of the other processes."""
