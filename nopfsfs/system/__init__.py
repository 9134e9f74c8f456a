"""The operating system; knows nothing of plans, tiers or requests."""
