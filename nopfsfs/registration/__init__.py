"""Registration of plans: a user or a training script states which files will be read, in which order."""
