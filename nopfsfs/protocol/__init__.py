"""Messages and shared memory that two processes must agree on."""
