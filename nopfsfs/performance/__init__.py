"""The performance model of NoPFS: source, tiers and network, as figures."""
