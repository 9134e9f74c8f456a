"""Copies on disk of files that are too large to be staged whole (docs/decisions/0019-large-files.md)."""
