"""Lookup, attributes, listing and reading over the index. Knows no FUSE."""
