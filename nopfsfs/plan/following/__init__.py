"""The plan of a whole mount. Pure."""
