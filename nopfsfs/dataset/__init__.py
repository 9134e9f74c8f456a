"""The immutable index of the source tree (inode = row + 1), its scan, and its cache on disk."""
