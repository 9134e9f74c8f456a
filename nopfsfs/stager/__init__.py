"""The stager process: reads the source, fills the tiers, and looks again at what the source grants."""
