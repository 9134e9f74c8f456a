"""A clock and a cluster for the policy: runs the product's own plan/ and policy/."""
