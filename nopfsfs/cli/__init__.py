"""The commands: they parse and check options, call the other folders, and print the results."""
