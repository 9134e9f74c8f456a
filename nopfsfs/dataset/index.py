"""The immutable index of a source tree: numpy columns, names in one buffer. No I/O but `save` and `load`.

Row r is inode r + 1. Row 0 is the root. Rows 0..n_dirs-1 are the directories in sorted path order; the other rows
follow in the order of (directory row, name) of their first entry, so the same tree gives the same inode numbers on every node.
Entries are names: hard links are several entries of one row. Entries are sorted by (parent row, name as bytes); the
entries of directory row d are first_entry[d]:first_entry[d+1].
"""
