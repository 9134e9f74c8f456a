"""The sampler names that the command line accepts are those that the plan knows."""

from nopfsfs.config import SAMPLERS
from nopfsfs.plan import registry


def test_command_line_and_registry_agree() -> None:
    assert set(SAMPLERS) == {registry.AUTO, *registry.SAMPLERS}
