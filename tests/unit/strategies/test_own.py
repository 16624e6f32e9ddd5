"""A strategy of the user's: answers come out plain, and a mistake is blamed on its file and line."""

import random
import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from controller.check.situations import SEEDS, SETTINGS, SITUATIONS
from controller.check.strategies import try_strategy
from controller.config.strategies import load_strategies, load_strategy
from controller.durability.image.freezer import Freezer
from controller.durability.image.thawer import thaw
from protocol.errors import ConfigError, PluginError
from strategies.kinds import PROMISES, STRATEGIES, key_of
from strategies.outcomes import TurnsView
from strategies.views import InstanceView, RunningView, Settings, SyncView, WorkView
from tests.support.answered_run import AnsweredRun

WORK = WorkView(0, 10, 0, True)
INSTANCES = [InstanceView(3, 0, 0, 0, 4, 100), InstanceView(8, 0, 0, 0, 4, 100)]
SYNCED = [SyncView(3, 0, 0, 0), SyncView(8, 0, 0, 0)]
RUNNING = {3: [RunningView(0, 10, 5, 0, 0), RunningView(1, 10, 5, 0, 0)], 8: []}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "routing": (WORK, INSTANCES, SETTINGS),
    "synchronization": (SYNCED, SETTINGS),
    "migration": (INSTANCES, RUNNING, SETTINGS),
    "admission": (SITUATIONS["admission"]()[0][0], 2.0),
    "filter": ((0.0, 1.0),),
    "turn_advantages": (TurnsView(((1.0,), (0.0, 0.5)), 1.0, "group_mean", "none"),),
}
PARAMETERS = {
    "routing": "work, instances, settings",
    "synchronization": "instances, settings",
    "migration": "instances, running, settings",
    "admission": "view, batches",
    "filter": "rewards",
    "turn_advantages": "view",
}


@pytest.fixture
def own(tmp_path, monkeypatch) -> Callable[..., str]:
    """Writes a file of the user's and gives the import path of `decide` in it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    written = []

    def write(code: str) -> str:
        written.append(tmp_path / f"mine_{len(written)}.py")
        written[-1].write_text(code)
        return f"{written[-1]}:decide"

    return write


def answering(own: Callable[..., str], field: str, answer: str) -> Any:
    code = f"import numpy as np\nimport random\ndef decide({PARAMETERS[field]}):\n    return {answer}\n"
    strategy = load_strategy(field, own(code))
    return strategy.choose if field == "routing" else strategy


@pytest.mark.parametrize(
    ("field", "answer", "taken"),
    [
        ("routing", "8", 8),
        ("routing", "None", None),
        ("routing", "np.int64(3)", 3),
        ("synchronization", "{8, 3}", [3, 8]),
        ("synchronization", "(i.id for i in instances)", [3, 8]),
        ("synchronization", "np.array([3])", [3]),
        ("migration", "[r.id for r in running[3]]", [0, 1]),
        ("admission", "np.float32(2)", 2),
        ("admission", "float('inf')", float("inf")),
        ("admission", "-float('inf')", -float("inf")),
        ("admission", "0.001", 1),
        ("admission", "3 / 2", 2),
        ("admission", "-1 / 2", 0),
        ("filter", "np.max(rewards) > 0", True),
        ("filter", "rewards[0]", False),
        ("turn_advantages", "[np.array(turns) for turns in view.rewards]", ((1.0,), (0.0, 0.5))),
    ],
)
def test_what_the_core_can_use_comes_out_as_plain_numbers(own, field, answer, taken):
    found = answering(own, field, answer)(*ARGUMENTS[field])
    assert found == taken
    assert type(found) is type(taken)
    if isinstance(found, list):
        assert {type(number) for number in found} == {int}


@pytest.mark.parametrize(
    ("field", "answer", "words"),
    [
        ("routing", "99", "answered 99, which is none of the instances that it may choose from, 3, 8"),
        ("routing", "True", "answered True, which is no `id`"),
        ("routing", "3.0", "answered 3.0, which is no `id`"),
        ("synchronization", "None", "answered None, which is no list"),
        ("synchronization", "[3, 4]", "answered [3, 4]; 4 is none of the instances"),
        ("synchronization", "'38'", "answered '38', which is no list"),
        ("migration", "[0, 2]", "answered [0, 2]; 2 is none of the 2 trajectories"),
        ("migration", "[-1]", "answered [-1]; -1 is none of the 2 trajectories"),
        ("admission", "None", "answered None, which is no number"),
        ("admission", "float('nan')", "answered nan, which is no number"),
        ("filter", "None", "answered None, which is no number"),
        ("filter", "list(rewards)", "answered [0.0, 1.0], which is no number"),
        (
            "turn_advantages",
            "[[1.0], [2.0]]",
            "answered [[1.0], [2.0]], whose lengths are [1, 1], and the turns are [1, 2]",
        ),
        (
            "turn_advantages",
            "[[1.0], [2.0, float('inf')]]",
            "answered [[1.0], [2.0, inf]], which are not all finite",
        ),
        ("turn_advantages", "[1.0, 2.0]", "answered [1.0, 2.0], which is no list of lists"),
        ("turn_advantages", "[[1.0], {2.0, 3.0}]", "answered [[1.0], {2.0, 3.0}], which is no list"),
        ("turn_advantages", "[[1.0], {2.0: 0}]", "answered [[1.0], {2.0: 0}], which is no list of lists"),
        ("turn_advantages", "[[1.0], [None, 2.0]]", "answered [[1.0], [None, 2.0]], which is no number"),
        ("filter", "rewards[7]", "raised IndexError: tuple index out of range"),
        ("admission", "exit('enough')", "raised SystemExit: enough"),
        ("admission", "exit('enough\\n  of it')", "raised SystemExit: enough of it. It was given"),
    ],
)
def test_what_the_core_cannot_use_is_blamed_on_its_file_and_line(own, field, answer, words):
    strategy = answering(own, field, answer)
    with pytest.raises(PluginError) as raised:
        strategy(*ARGUMENTS[field])
    text = str(raised.value)
    assert text.startswith(f"{key_of(field)}: decide (")
    line = 4 if "raised" in words else 3
    assert f"mine_0.py, line {line}) {words}" in text
    assert "It was given" in text
    assert "expected" in text


def test_an_error_in_a_library_is_blamed_on_the_line_that_called_it(own):
    code = "import json\n\n\ndef decide(rewards):\n    return helper()\n\n\n"
    code += "def helper():\n    return json.loads('')\n"
    with pytest.raises(PluginError, match=r"mine_0\.py, line 9\) raised JSONDecodeError"):
        load_strategy("filter", own(code))((1.0,))


def test_the_arguments_are_told_by_their_shapes(own):
    with pytest.raises(
        PluginError, match="given a WorkView of fresh work, 2 InstanceViews, Settings; expected"
    ):
        answering(own, "routing", "99")(*ARGUMENTS["routing"])
    with pytest.raises(
        PluginError, match="given 2 InstanceViews, the trajectories of 2 instances, Settings;"
    ):
        answering(own, "migration", "99")(*ARGUMENTS["migration"])
    with pytest.raises(PluginError, match=r"given AdmissionView, 2\.0; expected"):
        answering(own, "admission", "float('nan')")(*ARGUMENTS["admission"])


@pytest.mark.parametrize(
    ("field", "body", "taken"),
    [
        ("routing", "chosen = instances.pop()\n    return chosen.id", 8),
        ("synchronization", "chosen = [instances.pop().id]\n    return chosen", [8]),
        ("migration", "chosen = [running[3].pop().id]\n    instances.clear()\n    return chosen", [1]),
    ],
)
def test_an_answer_is_held_against_what_was_given_whatever_became_of_the_list(own, field, body, taken):
    strategy = load_strategy(field, own(f"def decide({PARAMETERS[field]}):\n    {body}\n"))
    decide = strategy.choose if field == "routing" else strategy
    assert decide(*deepcopy(ARGUMENTS[field])) == taken


def test_what_was_given_is_told_as_it_was_given(own):
    code = f"def decide({PARAMETERS['routing']}):\n    instances.clear()\n    return 99\n"
    words = (
        r"none of the instances that it may choose from, 3, 8\. It was given .*, 2 InstanceViews, Settings"
    )
    with pytest.raises(PluginError, match=words):
        load_strategy("routing", own(code)).choose(*deepcopy(ARGUMENTS["routing"]))


def test_a_run_goes_on_where_a_routing_changes_its_list(own, tmp_path):
    code = "from strategies.routing import has_room\ndef decide(work, instances, settings):\n"
    code += "    chosen = instances.pop(0)\n    return chosen.id if has_room(work, chosen) else None\n"
    run = AnsweredRun(tmp_path / "run.db", routing=own(code))
    run.to_the_end()
    assert run.core.state.steps == 4


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "class decide:\n    def __call__(self, rewards): ...\n",
            r"decide \(.*mine_0\.py, line 1\) is a class",
        ),
        ("decide = 3\n", "is 3; expected a function that is called with"),
        (
            "def decide(group, rewards): ...\n",
            r"line 1\) takes \(group, rewards\), and is called with \(rewards\)",
        ),
        ("def decide(*, rewards): ...\n", "TypeError: too many positional arguments"),
    ],
)
def test_what_can_never_be_called_is_refused_before_the_run(own, code, words):
    with pytest.raises(ConfigError, match=words):
        load_strategy("filter", own(code))


def test_objects_with_a_call_and_parts_of_functions_are_strategies_too(own):
    called = "class Rule:\n    def __call__(self, rewards):\n        return rewards[9]\n\n\ndecide = Rule()\n"
    with pytest.raises(PluginError, match=r"Rule\.__call__ \(.*mine_0\.py, line 3\) raised IndexError"):
        load_strategy("filter", own(called))((1.0,))
    partial = "from functools import partial\ndef by(least, rewards):\n    return rewards[9]\n"
    partial += "decide = partial(by, 1)\n"
    with pytest.raises(PluginError, match=r"by \(.*mine_1\.py, line 3\) raised IndexError"):
        load_strategy("filter", own(partial))((1.0,))


def test_the_order_of_a_routing_is_held_to_its_promise_too(own):
    code = "def decide(work, instances, settings):\n    return instances[0].id\n\n\n"
    code += "def least(instance, settings):\n    return {} \ndecide.order = least\n"
    for answer, key in (("(1, 2.5)", (1, 2.5)), ("3", (3,)), ("True", (1,)), ("()", ())):
        assert load_strategy("routing", own(code.format(answer))).order(INSTANCES[0], SETTINGS) == key
    with pytest.raises(
        PluginError, match=r"staleness\.routing \(its `order`\): least \(.*line 6\) raised NameError"
    ):
        load_strategy("routing", own(code.format("nothing"))).order(INSTANCES[0], SETTINGS)
    with pytest.raises(PluginError, match="answered None, which is no number"):
        load_strategy("routing", own(code.format("None"))).order(INSTANCES[0], SETTINGS)
    for answer in ("(1, None)", "(1, float('nan'))", "(1, (2, 3))", "(1, '2')"):
        with pytest.raises(PluginError, match="which is no number"):
            load_strategy("routing", own(code.format(answer))).order(INSTANCES[0], SETTINGS)


def test_a_run_goes_on_where_an_order_answers_a_number_for_some_instances_and_a_tuple_for_others(
    own, tmp_path
):
    code = "def decide(work, instances, settings):\n"
    code += "    return next((i.id for i in instances if i.running < i.capacity), None)\n\n\n"
    code += "def order(instance, settings):\n"
    code += "    return (instance.running, instance.resident_tokens) if instance.running else 0\n\n\n"
    code += "decide.order = order\n"
    run = AnsweredRun(tmp_path / "run.db", routing=own(code))
    run.to_the_end()
    assert run.core.state.steps == 4


def test_built_in_strategies_are_not_wrapped():
    assert load_strategy("routing", "round_robin").choose.__module__ == "strategies.routing"
    assert not hasattr(load_strategy("routing", "round_robin").choose, "__wrapped__")


def test_a_failing_strategy_comes_through_a_step_of_the_core_as_its_own_error(own, tmp_path):
    code = "def decide(work, instances, settings):\n    return instances[len(instances)].id\n"
    run = AnsweredRun(tmp_path / "run.db", routing=own(code))
    with pytest.raises(
        PluginError, match=r"staleness\.routing: decide \(.*mine_0\.py, line 2\) raised IndexError"
    ):
        run.to_the_end()
    run.store.close()


def test_a_move_of_a_trajectory_that_was_not_looked_at_is_refused_in_a_run_too(own, tmp_path):
    code = "def decide(instances, running, settings):\n    seen = [len(running[i.id]) for i in instances]\n"
    code += "    return [sum(seen)] if any(seen) else []\n"
    run = AnsweredRun(tmp_path / "run.db", steps=20, migration=own(code), decide_s=0.001)
    with pytest.raises(PluginError, match=r"; \d is none of the \d trajectories that it looked at"):
        run.to_the_end()
    run.store.close()


def test_a_core_with_strategies_of_ones_own_is_frozen_and_thawed(own, tmp_path):
    by = "import numpy as np\ndef decide(work, instances, settings):\n    "
    routing = own(f"{by}return np.int64(instances[0].id)\n")
    admission = own(
        "import numpy as np\ndef decide(view, batches):\n    return np.int64(4 - view.generating)\n"
    )
    run = AnsweredRun(tmp_path / "run.db", routing=routing, admission=admission)
    run.to_the_end(max_events=40)
    image = Freezer().freeze(run.core)
    thawed = thaw(image, load_strategies(run.config))
    assert Freezer().freeze(thawed) == image
    assert thawed.state.strategies.route.choose(*ARGUMENTS["routing"]) == 3


# -- the trial that `check` makes ----------------------------------------------------------------------------


@pytest.mark.parametrize("field", SITUATIONS)
def test_the_built_in_strategies_pass_their_own_trial(field):
    for strategy in STRATEGIES[field].values():
        function = strategy.choose if field == "routing" else strategy
        said = list(try_strategy(field, f"{function.__module__}:{function.__name__}"))
        assert [text for level, text in said if level == "error"] == []
        assert [text for _, text in said if "changed" in text or "very same" in text] == []


def test_answers_that_differ_and_changed_arguments_are_noted(own):
    code = "import itertools\nTURNS = itertools.count()\ndef decide(work, instances, settings):\n"
    code += "    instances.sort(key=lambda i: i.running)\n"
    code += "    free = [i.id for i in instances if i.running < i.capacity]\n"
    code += "    return free[next(TURNS) % len(free)] if free else None\n"
    said = list(try_strategy("routing", own(code)))
    assert {level for level, _ in said} == {"note"}
    assert any("changed a list that it was given" in text for _, text in said)
    assert any("to the very same" in text for _, text in said)


def test_chance_is_to_come_from_an_argument_that_the_kind_has(own):
    for field, seed in SEEDS.items():
        derive = eval(f"lambda {', '.join(PROMISES[field].parameters)}: random.Random({seed})")
        assert all(isinstance(derive(*arguments), random.Random) for arguments in SITUATIONS[field]())
    code = "import random\ndef decide(view):\n    places = list(range(len(view.prompts)))\n"
    said = try_strategy("sampler", own(code + "    random.shuffle(places)\n    return places\n"))
    assert any("`random.Random(view.seed)`" in text for _, text in said)
    said = try_strategy(
        "admission", own("import random\ndef decide(view, batches): return random.randrange(999)")
    )
    assert any("`random.Random(view.started)`" in text for _, text in said)


def test_a_memory_between_two_calls_is_noted(own):
    code = "class Turn:\n    n = 0\n    def __call__(self, work, instances, settings):\n        self.n += 1\n"
    code += "        return instances[self.n % len(instances)].id\n\n\ndecide = Turn()\n"
    assert any("to the very same" in text for _, text in try_strategy("routing", own(code)))


def test_a_choice_without_room_is_noted(own):
    said = list(
        try_strategy("routing", own("def decide(work, instances, settings):\n    return instances[0].id\n"))
    )
    assert [level for level, _ in said] == ["note"]
    assert "has_room" in said[0][1]


def test_a_trial_is_of_situations_that_the_core_shows():
    """Each argument has the type that the core gives, so that a strategy sees nothing else in a run."""
    for work, instances, settings in SITUATIONS["routing"]():
        assert isinstance(work, WorkView)
        assert instances
        assert isinstance(settings, Settings)
    for instances, _ in SITUATIONS["synchronization"]():
        assert instances
        assert all(isinstance(view, SyncView) for view in instances)
    for instances, running, _ in SITUATIONS["migration"]():
        assert {view.id for view in instances} == set(running)
