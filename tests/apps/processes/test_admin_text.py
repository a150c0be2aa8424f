"""Answers of several brokers as one."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from penstock.apps.serve import front
from penstock.base.metrics import Metric, Sample

METRICS = b"""# HELP a_total Things.
# TYPE a_total counter
a_total 3.0
# HELP b_seconds Times.
# TYPE b_seconds histogram
b_seconds_bucket{api="Fetch",le="+Inf"} 1.0
b_seconds_sum{api="Fetch"} 0.5
b_seconds_count{api="Fetch"} 1.0
"""


def test_metrics_have_a_label_and_stand_together() -> None:
    text = front.metrics({1: METRICS, 2: METRICS + b"# TYPE c gauge\nc 1.0\n", 3: None})
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert set(families) == {"penstock_process_up", "a", "b_seconds", "c"}
    up = {
        sample.labels["broker"]: sample.value for sample in families["penstock_process_up"].samples
    }
    assert up == {"1": 1.0, "2": 1.0, "3": 0.0}
    assert [sample.labels for sample in families["a"].samples] == [{"broker": "1"}, {"broker": "2"}]
    assert families["b_seconds"].samples[0].labels == {"broker": "1", "api": "Fetch", "le": "+Inf"}
    assert text.count(b"# TYPE a_total") == 1


def test_own_metrics_stand_with_those_of_brokers() -> None:
    metric = Metric(name="a_total", kind="counter", doc="Things.")
    text = front.metrics({1: METRICS}, [Sample(metric, 5)])
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    values = [(sample.labels, sample.value) for sample in families["a"].samples]
    assert values == [({}, 5), ({"broker": "1"}, 3)]
    assert text.count(b"# TYPE a_total") == 1


def test_what_brokers_could_not_take_into_use() -> None:
    answers = {1: {"failures": []}, 2: {"failures": ["no PEM"]}, 3: None}
    assert front.failures(answers) == ["broker 2: no PEM", "broker 3: it does not answer"]


def test_health_is_that_of_all() -> None:
    good = {"checks": [{"name": "storage", "ok": True, "cause": None}]}
    bad = {"checks": [{"name": "storage", "ok": False, "cause": "no room"}]}
    assert front.health({2: good, 1: good}, vital=False)["status"] == "ok"
    report = front.health({1: good, 2: bad}, vital=False)
    assert report["node_id"] == 1
    assert report["status"] == "failing"
    assert {"name": "broker 2: storage", "ok": False, "cause": "no room"} in report["checks"]
    assert front.health({1: good, 2: None}, vital=False)["status"] == "failing"
    assert front.health({1: good, 2: None}, vital=True)["status"] == "ok"


def test_groups_are_those_of_all_coordinators() -> None:
    found = front.groups(
        {1: {"groups": [{"group_id": "b"}]}, 2: {"groups": [{"group_id": "a"}]}, 3: None}
    )
    assert [group["group_id"] for group in found["groups"]] == ["a", "b"]
