"""The operating system. Knows nothing of plans, tiers or requests."""
