"""Lets mounts take the wall clock for disciplined: with this directory in PYTHONPATH, Python runs this module first.

A container's clock often counts as unsynchronised. Mounts of one machine have the same clock, so that they drain
together all the same, as those of a cluster do whose clocks are disciplined.
"""

from nopfsfs.system import clock_state

clock_state.disciplined = lambda: True
