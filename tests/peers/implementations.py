"""The MPI implementations under which a test runs."""

from __future__ import annotations

import pytest

# What one shows, the other repeats: `make test` runs the first, `make test-all` both.
BOTH = ["mpich", pytest.param("openmpi", marks=pytest.mark.slow)]
