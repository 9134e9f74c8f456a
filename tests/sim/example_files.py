"""Cluster and data set files as text, for tests."""

from __future__ import annotations

CLUSTER = """\
name = "two"
note = "by hand"
nodes = 2
ranks = 3
compute = "100 MB/s"
preprocess = 2e8
network = "1 GB/s"

[source]
link = "2000 MB/s"
latency = "5ms"
at_once = 64
rate = { 4 = "146 MB/s", 1 = 66_000_000, "1.5" = "70 MB/s" }

[staging]
capacity = 1000
threads = 2
read = "21164 MB/s"

[[class]]
name = "ram"
capacity = ["1 G", "0"]
threads = 4
read = { 2 = "10 MB/s" }
write = "5 MB/s"

[[class]]
name = "ssd"
capacity = 0
threads = 1
[class.read]
1 = "3 MB/s"
8 = "9 MB/s"
"""
DATASET = """\
name = "S1"
samples = 10000
mean = "0.027 MB"
sigma = "0.01 MB"

[training]
epochs = 10
batch = 25
drop_last = false
seed = -1
"""
