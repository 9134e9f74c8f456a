"""A user or a training script says what will be read."""
