"""Pure: (seed, epoch, world, rank, n) -> order of samples; the cursor that follows a reader. No I/O."""
