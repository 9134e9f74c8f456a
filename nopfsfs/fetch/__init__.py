"""How bytes travel: the source reader and the stager process that fills the tiers."""
