"""The policy as it was before `Residency`: the new one must give the same commands."""
