"""The stager process: reads the source, fills the tiers."""
