"""Pure: what to fetch, push, drop and evict next, and where a file should live. No I/O."""
