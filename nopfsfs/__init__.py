"""nopfsfs: a FUSE file system that knows the order in which a training job will read its files."""

__version__ = "0.1.0"
