"""The kernel's FUSE interface: mounting, the connection, the mount table. Answers no request."""
