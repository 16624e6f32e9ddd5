"""The board and the alert rules for Grafana and Prometheus name figures that the view has."""

import json
import re
from pathlib import Path

import yaml

from tests.support.shown_run import Browser, recorded

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "grafana"


def test_the_board_and_the_alerts_name_only_figures_and_labels_that_exist(tmp_path):
    page = Browser(recorded(tmp_path / "run")).ask("/metrics")[2].decode()
    names = set(re.findall(r"^(?:# TYPE )?(staleflow_\w+)", page, re.M))  # some have no value in every run
    labels = set(re.findall(r'[{,](\w+)="', page))
    board = json.loads((FOLDER / "staleflow.json").read_text())
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
    assert len(rules) == 7
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [rule["expr"] for rule in rules]
    for expression in asked:
        used = re.findall(r"staleflow_\w+", expression)
        assert used
        assert set(used) <= names, expression
        assert set(re.findall(r"[{,]\s*(\w+)[=!]", expression)) <= labels, expression
    shown = [word for panel in board["panels"] for t in panel["targets"]
             for word in re.findall(r"{{(\w+)}}", t["legendFormat"])]  # fmt: skip
    assert set(shown) <= labels


def test_no_two_panels_of_the_board_overlap():
    places = [panel["gridPos"] for panel in json.loads((FOLDER / "staleflow.json").read_text())["panels"]]
    taken = [
        (x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
