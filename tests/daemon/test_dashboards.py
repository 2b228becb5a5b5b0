"""The dashboard and the alerts that are shipped: what they ask for is there, and what they say helps."""

from __future__ import annotations

import json
import re
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from replayd.board import Board
from replayd.cli import main
from replayd.metrics import OF_TABLES, OF_THE_SERVER, Exposition
from tests.daemon.confined import settings_in
from tests.daemon.harness import ROOT
from tests.daemon.promql import labels, parsed, selectors
from tests.wire.test_protocol_md import busy_service

DASHBOARD = json.loads((ROOT / "systemd" / "grafana" / "replayd.json").read_text())
ALERTS = yaml.safe_load((ROOT / "systemd" / "replayd-alerts.yml").read_text())
SCRAPE = yaml.safe_load((ROOT / "systemd" / "prometheus.yml").read_text())

RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
LEGENDS: list[tuple[str, str]] = [
    *((target["expr"], target.get("legendFormat", "")) for panel in PANELS for target in panel["targets"]),
    *((annotation["expr"], "") for annotation in DASHBOARD["annotations"]["list"]),
]
"""Each expression of the dashboard, and how its series are called."""

VARIABLES = [variable["query"]["query"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]


def exposed(proc: str) -> str:
    """What a scraper is given of a busy server whose process sees this directory as /proc."""
    board = Board()
    board.publish(busy_service().report(2.0, brief=True), 2.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("replayd.metrics.ProcessCollector", partial(ProcessCollector, proc=proc))
        return Exposition(board, lambda: 2.0).text().decode()


@cache
def metrics() -> dict[str, frozenset[str]]:
    """Labels of each series there may be, by its name: of a service, which sees of /proc its processes alone."""
    found: dict[str, set[str]] = {"up": set()}
    with TemporaryDirectory() as proc:
        (Path(proc) / "self").symlink_to("/proc/self")
        text = exposed(proc)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    # Of what has no value yet there is no series.
    for names, theirs in ((OF_TABLES, {"table"}), (OF_THE_SERVER, set())):
        for kind, name, _, _ in names:
            found.setdefault(f"{name}_total" if kind is CounterMetricFamily else name, set()).update(theirs)
    return {name: frozenset(labels) for name, labels in found.items()}


def test_what_a_service_cannot_see_is_not_relied_on() -> None:
    of_all = {family.name for family in text_string_to_metric_families(exposed("/proc"))}
    assert "process_resident_memory_bytes" in of_all
    assert [name for name in metrics() if name.startswith("process_")] == [], "ProcSubset=pid hides /proc/stat"
    assert "replayd_resident_memory_bytes" in metrics()
    assert ("ProcSubset", "pid") in settings_in(ROOT / "systemd" / "replayd.service")


def labels_of(metric: str) -> frozenset[str]:
    assert metric in metrics(), f"there is no {metric}"
    return metrics()[metric]


def asked(expression: str) -> set[str]:
    """Metrics that an expression names."""
    return {selector.name for selector in selectors(parsed(expression))}


@pytest.mark.parametrize(("expression", "legend"), LEGENDS)
def test_what_the_dashboard_asks_for_has_the_labels_that_it_names(expression: str, legend: str) -> None:
    there = labels(parsed(expression), labels_of)
    assert there is not None
    assert set(re.findall(r"{{ *(\w+) *}}", legend)) <= there


def test_the_variables_of_the_dashboard_are_labels_that_there_are() -> None:
    assert len(VARIABLES) == 2
    for query in VARIABLES:
        (selector, label) = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        there = labels(parsed(selector), labels_of)
        assert there is not None
        assert label in there


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_what_an_alert_asks_for_has_the_labels_that_it_names(rule: dict[str, Any]) -> None:
    there = labels(parsed(rule["expr"]), labels_of)
    assert there is not None
    told = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", told)) <= there
    assert "instance" in there, "one knows which daemon it is"


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("sum(replayd_connections", "parenthes"),
        ("rate(replayd_requests_total)", "expected type matrix"),
        ("frequency(replayd_requests_total[5m])", "unknown function"),
        ('replayd_table_items{tabel="x"}', r"no \['tabel'\]"),
        ('replayd_connections{table="x"}', r"no \['table'\]"),
        ("sum by (side) (replayd_table_items)", r"no \['side'\]"),
        ("replayd_table_bytes / replayd_memory_limit_bytes", "never match"),
        ("replayd_table_bytes / on (table) replayd_memory_limit_bytes", r"no \['table'\]"),
    ],
)
def test_a_wrong_expression_would_be_found(expression: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        labels(parsed(expression), labels_of)


def test_much_of_what_there_is_is_shown_and_alarmed() -> None:
    shown = {name for expression, _ in LEGENDS for name in asked(expression)}
    alarmed = {name for rule in RULES for name in asked(rule["expr"])}
    assert len(shown) > 40
    assert len(alarmed) > 15


def test_every_alert_says_what_is_the_matter_and_what_to_do() -> None:
    assert len(RULES) > 10
    for rule in RULES:
        assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
    commands = {name for rule in RULES for name in re.findall(r"`replayd (\w+)", rule["annotations"]["description"])}
    assert commands
    assert commands <= set(main.commands)


FAULTS = re.compile(r"abandoned|dropped|failures|faults|gaps|lost|refused|unreadable")
"""In the names of metrics that count what goes wrong, or who is turned away."""


def test_what_goes_wrong_and_who_is_turned_away_is_alarmed_and_shown() -> None:
    alarmed = {name for rule in RULES for name in asked(rule["expr"])}
    shown = {name for expression, _ in LEGENDS for name in asked(expression)}
    named = [
        (f"{name}_total" if kind is CounterMetricFamily else name, text)
        for kind, name, text, _ in (*OF_TABLES, *OF_THE_SERVER)
    ]
    faults = {name for name, text in named if FAULTS.search(name) or "should stay 0" in text}
    assert len(faults) >= 12
    assert faults - shown == set()
    # A deadline that passes while a limiter holds a request is answered by an error too, and is as it should be.
    assert faults - alarmed == {"replayd_requests_refused_total"}


def test_the_age_of_checkpoints_is_what_is_alarmed_and_shown_as_that() -> None:
    # Not the durable age: with a journal that stays small however long ago the last checkpoint was, and without one it
    # has no value until the first.
    (rule,) = [rule for rule in RULES if rule["alert"] == "ReplaydCheckpointOld"]
    assert asked(rule["expr"]) == {"replayd_checkpoint_age_seconds"}
    (panel,) = [panel for panel in PANELS if panel["title"] == "Age of the last checkpoint"]
    assert asked(panel["targets"][0]["expr"]) == {"replayd_checkpoint_age_seconds"}


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_scrape_configuration_finds_the_default_port_and_the_alerts() -> None:
    from replayd.config import read_config

    port = read_config().http.listen.rpartition(":")[2]
    (job,) = SCRAPE["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"localhost:{port}"]}]
    assert SCRAPE["rule_files"] == ["replayd-alerts.yml"]
    (down,) = [rule for rule in RULES if rule["alert"] == "ReplaydDown"]
    (selector,) = selectors(parsed(down["expr"]))
    assert [(each.name, each.value) for each in selector.matchers.matchers] == [("job", job["job_name"])]
