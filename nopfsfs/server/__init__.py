"""The server process: answers FUSE requests."""
