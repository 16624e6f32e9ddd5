"""Strategies are loaded in one place, from a configuration, and handed in to the core."""

import re
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from controller.check.strategies import try_strategy
from controller.config.models import Config
from controller.config.pluggable import BUILT_IN
from controller.config.sections.staleness import StalenessSettings
from controller.config.strategies import load_strategies
from controller.core.core import Core
from controller.core.events import Restarted, Started
from controller.core.state.views.admission import admission_view, admitted
from protocol.errors import ConfigError
from strategies.admission import adaptive, by_cap, whole_window
from strategies.kinds import STRATEGIES, Strategies, key_of
from strategies.routing import ROUTINGS, Routing, by_marginal_gain
from strategies.views import KNOBS, Settings
from tests.support.answered_run import AnsweredRun
from tests.support.core_run import Run

DOCS = Path(__file__).resolve().parents[4] / "docs" / "strategies.md"


def loaded(**staleness):
    return load_strategies(Config.model_validate({"staleness": staleness}))


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A file of the user's with what the page says, and the import paths of what is in it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (tmp_path / "my_rules.py").write_text("\n".join(blocks))
    return lambda name: f"{tmp_path / 'my_rules.py'}:{name}"


@pytest.mark.parametrize("field", STRATEGIES)
def test_every_kind_is_loaded_by_its_key(field):
    section = key_of(field).partition(".")[0]
    assert key_of(field) in BUILT_IN
    assert len(STRATEGIES) == len(fields(Strategies))
    with pytest.raises(ConfigError, match=r"no_such_file\.py"):
        load_strategies(Config.model_validate({section: {field: "no_such_file.py:decide"}}))
    for name in STRATEGIES[field]:
        assert load_strategies(Config.model_validate({section: {field: name}}))


@pytest.mark.parametrize("field", STRATEGIES)
def test_the_manual_names_what_is_built_in(field):
    section, _, key = key_of(field).partition(".")
    meaning = Config.model_fields[section].annotation.model_fields[key].description
    missing = [name for name in STRATEGIES[field] if f"`{name}`" not in meaning]
    assert not missing, f"name {', '.join(missing)} in the docstring of {key_of(field)}, which is its manual"


WINDOWS = {"auto": adaptive, "all": whole_window, 1.5: by_cap}


@pytest.mark.parametrize("begun", WINDOWS)
@pytest.mark.parametrize("batches", WINDOWS)
def test_the_admission_window_is_the_rule_of_its_batches_also_when_a_run_goes_on_with_others(begun, batches):
    config = Config.model_validate({"staleness": {"in_flight_batches": begun}})
    core = Core(config, load_strategies(config))
    core.step(0.0, Started())
    goes_on = Config.model_validate({"staleness": {"in_flight_batches": batches}})
    core.step(1.0, Restarted(goes_on.model_dump_json(), "somewhere", ()))
    assert admitted(core.state) == WINDOWS[batches](admission_view(core.state), batches)
    answers = {rule(admission_view(core.state), 1.5) for rule in WINDOWS.values()}
    assert len(answers) == len(WINDOWS), "or nothing would be told apart"


def test_a_core_decides_by_what_it_is_handed_and_not_by_what_its_configuration_names(tmp_path):
    run = AnsweredRun(tmp_path / "run.db", steps=2)
    asked = []

    def watched(work, instances, settings):
        asked.append(work.group)
        return by_marginal_gain(work, instances, settings)

    own = load_strategies(run.config)
    run.core = Core(run.config, replace(own, route=Routing(watched, own.route.order)), run_dir="somewhere")
    run.to_the_end()
    run.store.close()
    assert run.core.state.steps == 2
    assert asked


def test_what_the_page_on_strategies_shows_is_taken(mine):
    route, routing = (loaded(routing=mine(name)).route for name in ("route", "by_free_kv"))
    assert route.order is None
    assert routing.order is not None
    assert [*try_strategy("routing", mine("route"))] == []
    assert [*try_strategy("routing", mine("by_free_kv"))] == []


def test_a_built_in_routing_by_its_path_keeps_what_it_brings():
    assert loaded(routing="group_affine").route is ROUTINGS["group_affine"]
    assert loaded(routing="strategies.routing:round_robin").route.order is None


def test_the_order_of_a_routing_is_tried_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    code = "from strategies.routing import Routing, by_least_requests\n"
    code += "rule = Routing(by_least_requests, lambda instance, settings: instance.speed)\n"
    (tmp_path / "ordered.py").write_text(code)
    said = [*try_strategy("routing", f"{tmp_path / 'ordered.py'}:rule")]
    assert [level for level, _ in said] == ["error"]
    assert re.search(r"\(its `order`\): .*ordered\.py, line 2\) raised AttributeError", said[0][1])


def test_each_setting_of_strategies_is_a_key_of_the_configuration_or_measured():
    measured = {"newest_version", "fresh", "typical_tokens", "horizon_s", "is_batch_ready", "is_tail_bound"}
    assert set(Settings._fields) == set(KNOBS) | measured
    assert set(KNOBS.values()) <= set(StalenessSettings.model_fields)
    config = Config.model_validate({"staleness": {"keep_kv": True, "length_prediction": False, "mu": 0.5}})
    settings = Core(config, load_strategies(config)).state.strategy_settings
    assert (settings.keeps_kv, settings.uses_prediction, settings.mu) == (True, False, 0.5)


@pytest.mark.parametrize(("cap", "held"), [(7.0, 7.0), (1.0, 2.0)], ids=["more", "less than a batch"])
def test_a_pacing_of_the_users_sets_the_cap_and_mu_after_each_measured_step(tmp_path, cap, held):
    run = AnsweredRun(tmp_path / "run.db", steps=3)
    seen = []

    def watched(step):
        seen.append(len(step.pace.periods))
        return cap, 0.25

    run.core.state.strategies = replace(run.core.state.strategies, adapt=watched)
    run.to_the_end()
    run.store.close()
    assert seen, "no step was measured"
    assert run.core.state.pace.cap == held
    assert run.core.state.strategy_settings.mu == 0.25


def test_a_run_whose_cap_let_no_batch_become_complete_goes_on_after_a_restart():
    run = Run()
    run.core.state.pace = run.core.state.pace._replace(cap=1.0)  # of a release that let it be so
    run.do(Restarted(run.config.model_dump_json(), "", ()))
    assert run.core.state.pace.cap == 2.0
