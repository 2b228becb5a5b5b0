"""The dashboard and the alerts that are shipped: what they ask for is there, and what they say helps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from replayd.cli import main
from replayd.metrics import OF_TABLES, OF_THE_SERVER
from tests.daemon.conftest import StartDaemon
from tests.daemon.embedded import until
from tests.daemon.harness import ROOT
from tests.daemon.test_http import get

DASHBOARD = json.loads((ROOT / "systemd" / "grafana" / "replayd.json").read_text())
ALERTS = (ROOT / "systemd" / "replayd-alerts.yml").read_text()
SCRAPE = (ROOT / "systemd" / "prometheus.yml").read_text()

RULES = re.split(r"^ *- alert: ", ALERTS, flags=re.MULTILINE)[1:]


@pytest.fixture
def names(start_daemon: StartDaemon) -> set[str]:
    """Names of all series, and of families that have none yet, as one asks for them."""
    daemon = start_daemon("--table", "t")
    until(lambda: get(daemon.http_address, "/readyz")[0] == 200)
    found = set()
    for family in text_string_to_metric_families(get(daemon.http_address, "/metrics")[1]):
        found |= {family.name, f"{family.name}_total"} | {sample.name for sample in family.samples}
        if family.type == "histogram":
            found |= {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
    return found


def asked(expression: str) -> set[str]:
    """Metrics of ours that an expression names."""
    return set(re.findall(r"\b(?:replayd|process)_\w+", re.sub(r'"[^"]*"', "", expression)))


def panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            yield panel


def test_every_metric_that_the_dashboard_asks_for_exists(names: set[str]) -> None:
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    expressions += [variable["query"]["query"] for variable in DASHBOARD["templating"]["list"][1:]]
    expressions += [annotation["expr"] for annotation in DASHBOARD["annotations"]["list"]]
    wanted = {name for expression in expressions for name in asked(expression)}
    assert len(wanted) > 30
    assert wanted <= names


def test_every_metric_that_the_alerts_ask_for_exists(names: set[str]) -> None:
    wanted = {name for rule in RULES for name in asked(rule.partition("annotations:")[0])}
    assert len(wanted) > 10
    assert wanted <= names


def test_every_alert_says_what_is_the_matter_and_what_to_do() -> None:
    assert len(RULES) > 10
    for rule in RULES:
        for key in ("expr:", "severity:", "summary:", "description:"):
            assert rule.count(key) == 1, rule
    commands = set(re.findall(r"`replayd (\w+)", ALERTS))
    assert commands
    assert commands <= set(main.commands)


def test_what_should_stay_0_and_who_is_turned_away_is_alarmed_and_shown() -> None:
    alarmed = {name for rule in RULES for name in asked(rule.partition("annotations:")[0])}
    shown = {name for panel in panels() for target in panel["targets"] for name in asked(target["expr"])}
    counters = {f"{name}_total" for _, name, text, _ in (*OF_TABLES, *OF_THE_SERVER) if "should stay 0" in text}
    assert len(counters) >= 2
    counters |= {"replayd_connections_refused_total", "replayd_push_gaps_total", "replayd_checkpoint_failures_total"}
    assert counters - alarmed == set()
    assert counters - shown == set()


def test_the_age_of_checkpoints_is_what_is_alarmed_and_shown_as_that() -> None:
    # Not the durable age: with a journal that stays small however long ago the last checkpoint was, and without one it
    # has no value until the first.
    (rule,) = [rule for rule in RULES if rule.startswith("ReplaydCheckpointOld")]
    assert asked(rule.partition("annotations:")[0]) == {"replayd_checkpoint_age_seconds"}
    (panel,) = [panel for panel in panels() if panel["title"] == "Age of the last checkpoint"]
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
    assert f'"localhost:{port}"' in SCRAPE
    assert "replayd-alerts.yml" in SCRAPE
    assert 'job="replayd"' in ALERTS
    assert "job_name: replayd" in SCRAPE
