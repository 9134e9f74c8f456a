"""The MPI implementations under which a test runs."""

from __future__ import annotations

from tests.conftest import slow

# What one shows, the other repeats: `make test` runs the first, `make test-all` both.
BOTH = ["mpich", slow("openmpi")]
