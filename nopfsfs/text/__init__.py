"""Text that people write and read: sizes, rates, rank lists, TOML. Pure."""
