"""Lookup, attributes, listing, links and extended attributes over the index. Knows no FUSE."""
