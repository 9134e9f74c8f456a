"""The commands: parse, validate, call. Nothing here knows how the work is done."""
