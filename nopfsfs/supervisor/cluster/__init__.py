"""Where files live in a cluster, agreed between supervisors."""
