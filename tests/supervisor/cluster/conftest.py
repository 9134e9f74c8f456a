"""Fixtures of all tests of the cluster."""

from tests.supervisor.cluster.agreeing import _short, index  # noqa: F401
