"""The simulator: a clock and a cluster for the product's own plan/, placement/ and performance/."""
