"""The places where bytes are kept: the source, the arena in RAM, disk tiers, the kernel's page cache."""
