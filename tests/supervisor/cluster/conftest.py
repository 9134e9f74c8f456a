"""Fixtures of all tests of the cluster."""

from tests.supervisor.cluster.agreeing import _no_threads, _short, index  # noqa: F401
