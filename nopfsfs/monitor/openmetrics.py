"""Metrics of mounts in the text formats of OpenMetrics and Prometheus, by prometheus-client (extra `metrics`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from nopfsfs.monitor.metric_table import METRICS, PREFIX, UP, Durations, Figures, MetricKind, MetricLine, label_text
from nopfsfs.monitor.scrape import MountAnswer
from nopfsfs.protocol.durations import BOUNDS_S

_BOUNDS = (*map(floatToGoString, BOUNDS_S), "+Inf")


_OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class MountCollector(Collector):
    """Asks for the figures when they are collected."""

    def __init__(self, ask: Callable[[], Iterable[MountAnswer]]) -> None:
        self._ask = ask

    def describe(self) -> Iterator[Metric]:
        """Name no metrics when this is registered: else the mounts would be asked for them."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The metrics of all mounts; of one that does not answer, that it is not up."""
        answers = list(self._ask())
        up = GaugeMetricFamily(PREFIX + UP.name, UP.help, labels=["mountpoint"])
        for one in answers:
            up.add_metric([label_text(one.mountpoint)], float(one.figures is not None))
        if answers:
            yield up
        living = [(label_text(one.mountpoint), one.figures) for one in answers if one.figures is not None]
        for line in METRICS:
            family = _family(line, living)
            if family.samples:
                yield family


def _family(line: MetricLine, mounts: Iterable[tuple[str, Figures]]) -> Metric:
    name, labels = PREFIX + line.name, ["mountpoint", *line.labels]
    found = [((mountpoint, *more), value) for mountpoint, figures in mounts for more, value in line.read(figures)]
    if line.kind is MetricKind.INFO:
        info = InfoMetricFamily(name.removesuffix("_info"), line.help)
        for texts, _ in found:
            info.add_metric([], dict(zip(labels, texts, strict=True)))
        return info
    if line.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, line.help, labels=labels)
        for texts, value in found:
            if isinstance(value, Durations):
                buckets = list(zip(_BOUNDS, map(float, accumulate(value.counts)), strict=True))
                histogram.add_metric(texts, buckets, value.seconds)
        return histogram
    counter = line.kind is MetricKind.COUNTER
    family = CounterMetricFamily(name, line.help, labels=labels) if counter else GaugeMetricFamily(
        name, line.help, labels=labels
    )  # fmt: skip
    for texts, value in found:
        if isinstance(value, float) and not (counter and value < 0):  # the format has no such counters
            family.add_metric(texts, value)
    return family


def registry_of(ask: Callable[[], Iterable[MountAnswer]]) -> CollectorRegistry:
    """A registry with the mounts and nothing else. Nothing is asked before it is collected."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MountCollector(ask))
    return registry


def openmetrics_text(answers: Iterable[MountAnswer]) -> str:
    """The metrics in OpenMetrics' format."""
    encode, _ = choose_encoder(_OPENMETRICS)
    return encode(registry_of(lambda: answers)).decode()


def prometheus_text(answers: Iterable[MountAnswer]) -> bytes:
    """The metrics in Prometheus' older format, which node_exporter takes from files."""
    return generate_latest(registry_of(lambda: answers))
