"""The rooms of the house: which folder may import which, and how large a room may grow. A failure says how to
mend it."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("controller", "workers", "protocol", "strategies")
TEST_FILES = sorted((ROOT / "tests").rglob("test_*.py"))
MOST_FILES = 16  # of a folder, __init__.py not counted
MOST_LINES = 400
MOST_FUNCTION_LINES = 50
LONG_FILES: dict[str, int] = {}  # they may shrink, and never grow
LONG_FUNCTIONS: set[tuple[str, str]] = set()
CONTROLLER = {
    "config": set(),
    "core": {"config"},
    "data": {"config"},
    "check": {"config", "data"},
    "durability": {"config", "core"},
    "history": {"config", "core", "durability"},
    "view": {"config", "core", "durability", "history"},
    "simulation": {"config", "core", "durability", "history"},
    "host": {"config", "core", "data", "durability"},
    "cluster": {"config"},
    "cli": {"check", "cluster", "config", "durability", "history", "simulation", "view"},
}  # room -> rooms that it may import; controller/controller.py stands above them all
WORKERS = {
    "link": set(),
    "models": set(),
    "sandbox": {"link"},
    "children": {"link", "sandbox"},
    "weights": {"link"},
    "engines": {"models"},
    "rollout": {"engines", "link", "weights"},
    "reward": {"children", "link", "models", "sandbox"},
    "agent": {"children", "link", "models"},
    "trainer": {"link", "models", "weights"},
    "evaluate": {"agent", "engines", "models", "reward", "rollout"},
    "simulated": set(),
    "host": {"agent", "link", "reward", "rollout", "sandbox", "trainer", "weights"},
}
DECISIONS = """
training.training > training.logprob_drift, training.trainer_batches
versions.publication > versions.relay_tree
versions.pulls > versions.relay_tree
workers.membership > supply.scoring, training.training
"""  # which decision uses which other one; the list may shrink, and never grow
SAME_ROLE = """
admission migration: the decision, what it sees of the state, the rule that is chosen
engine link trainer: the simulated one beside the real one
beside listener server serve site: one process or server each
child pipe pool process: agents and reward functions of the user, each in children of their own
function kinds: kinds of agents, of rewards, of strategies
data lora machine memory model prompts strategies: a subject's settings, its check, its work
critic policy: the loss of it, the model itself, an agent's view of it
episodes kept_sets limits: the state or layout, and the decisions on it
from_run render stacks whatif: the command or page, and the work behind it
interface settings: what a plug-in or a section holds
kept: kept sets, as an engine tells them and as the losses take them
own: what the user wrote, taken for one of ours
store supervisor: files of the run and of weights; workers and tested programs
worker: the loop of each role
"""  # names of modules that more than one folder has: what these modules share
COVERED_BY = """
conformance/test_engine_scheduling.py: workers/engines/interface
integration/test_agent_worker.py: workers/agent/child workers/agent/pipe workers/agent/pool
 workers/agent/process workers/models/tokenizer
integration/test_agent_door.py: workers/agent/kinds/command workers/children/program
integration/test_code_verdicts.py: workers/sandbox/job
integration/test_connected_verifiers.py: workers/agent/kinds/verifiers workers/agent/kinds/verifiers_policy
integration/test_connection_floods.py: protocol/wire/server
integration/test_evaluated_without_a_run.py: workers/evaluate/checkpoint
unit/workers/evaluate/test_evaluator.py: workers/evaluate/played
integration/test_forks.py: controller/host/forks workers/host/fork_server workers/models/renewal
integration/test_fuzzed_server.py: protocol/wire/sockets
integration/test_killed_runs.py: workers/link/parent
integration/test_math_rewards.py: workers/reward/kinds/cpu_limit workers/reward/kinds/math
integration/test_prompts_of_a_shell.py: controller/host/shell
integration/test_reasoning_gym_rewards.py: workers/reward/kinds/reasoning_gym
integration/test_remote_workers.py: controller/cli/remote workers/host/find_model workers/host/stop
integration/test_reward_memory.py: workers/children/keeper
integration/test_reward_pool.py: workers/children/packets workers/children/pipe workers/children/process
 workers/reward/child workers/reward/process
integration/test_sandbox.py: workers/link/descendants workers/sandbox/box workers/sandbox/bubblewrap
 workers/sandbox/chosen_box workers/sandbox/inside/ask workers/sandbox/inside/begin
 workers/sandbox/inside/peer workers/sandbox/inside/run workers/sandbox/inside/serve
 workers/sandbox/seccomp workers/sandbox/supervisor
 workers/sandbox/usage workers/sandbox/users workers/sandbox/warden
integration/test_security.py: protocol/wire/connection protocol/wire/security
integration/test_stacks.py: controller/cli/stacks protocol/stacks workers/reward/pipe
integration/test_supervisor.py: controller/host/supervisor
integration/test_vllm_adapter.py: workers/engines/vllm/extension
integration/test_vllm_runs.py: workers/engines/vllm/kept workers/engines/vllm/statistics
integration/test_weights_channel.py: workers/weights/exchange workers/weights/exchange_process
 workers/weights/fetch
integration/test_whole_runs.py: workers/host/serve workers/models/prepare
properties/test_ledger_buffers.py: controller/core/state/counting_ledger
simulation/test_agent_fault_sweep.py: workers/simulated/agent
simulation/test_going_back.py: controller/durability/violation controller/host/going_back
simulation/test_oracle.py: controller/core/decisions/evaluation/evaluation_schedule
 controller/core/decisions/placement/reports
 controller/core/decisions/training/training controller/core/invariants
simulation/test_restarts.py: controller/core/state/policy_versions
simulation/test_simulated_runs.py: controller/simulation/simulated_workers controller/simulation/faults
 controller/simulation/host workers/simulated/link workers/simulated/rollout workers/simulated/text
 workers/simulated/trainer
simulation/test_stragglers.py: controller/core/decisions/placement/stragglers
unit/workers/agent/door/test_bad_requests.py: workers/agent/door/refusal
unit/workers/agent/door/test_door_clients.py: workers/agent/door/completion
 workers/agent/door/keys workers/agent/door/listener
unit/controller/core/decisions/supply/test_episodes.py: controller/core/decisions/supply/episode_starts
 controller/core/effects/trials
unit/controller/core/decisions/supply/test_forks_of_episodes.py: controller/core/state/batches/contributions
 controller/core/state/agents/episode_rewards
integration/test_check_chat_template.py: workers/agent/try_template
unit/controller/check/test_check_data.py: controller/check/plugins controller/check/prompts
 controller/check/reward protocol/rewards/shapes workers/reward/kinds/function workers/reward/kinds/interface
 workers/reward/try_prompts workers/reward/try_reward
unit/controller/check/test_machine.py: controller/cli/doctor
unit/controller/check/test_named_rewards.py: controller/config/reward_rules protocol/rewards/kinds
unit/controller/cli/test_command_line.py: controller/cli/say
unit/controller/cli/test_said_by_commands.py: controller/cli/looking/history controller/durability/release
unit/controller/cluster/test_render.py: controller/cli/render
unit/controller/config/test_config_strategies.py: strategies/kinds
unit/controller/config/test_load.py: controller/config/models controller/config/rules
unit/controller/core/decisions/placement/test_dispatch.py:
 controller/core/state/views/admission controller/core/state/views/instances
unit/controller/core/decisions/workers/test_plausibility.py: controller/core/hearing
 controller/core/state/told
unit/controller/core/decisions/supply/test_episodes.py: controller/core/effects/turns
 controller/core/state/agents/episodes protocol/agents/settings
unit/controller/core/decisions/workers/test_limits.py: controller/core/state/asks controller/core/waiting_for
unit/controller/core/decisions/workers/test_reattachment.py: controller/core/state/registry
unit/controller/core/state/test_source_mixture.py: controller/config/data controller/config/data_rules
 strategies/schedules
unit/controller/core/state/test_transition_coverage.py: controller/core/state/groups
unit/controller/core/test_core.py: controller/core/state/run_state
unit/controller/durability/test_payload_given.py: protocol/messages/from_agents
unit/controller/durability/test_kept_payload.py: controller/durability/kept_sets
 controller/durability/payload_cache
unit/controller/data/test_fingerprints.py: controller/data/sources controller/data/text_files
unit/controller/data/test_formats.py: controller/data/parquet controller/data/tables
unit/controller/data/test_prompts.py: controller/data/saved
unit/controller/host/test_prompt_reader.py: controller/host/daemon_thread
unit/controller/host/test_stepper.py: controller/host/resumed_run
simulation/test_simulation_assumed.py: controller/cli/simulate controller/simulation/records
simulation/test_simulation_compare.py: controller/simulation/report
simulation/test_simulation_from_run.py: controller/cli/planning/from_run
simulation/test_simulation_whatif.py: controller/simulation/measured
unit/controller/test_file_modes.py: controller/host/log_file protocol/private_files workers/rollout/handover
unit/controller/cli/test_cli_control.py: controller/view/orders
unit/controller/view/door/test_beside.py: controller/view/door/resident
unit/controller/view/exports/test_outgoing.py: controller/cli/alarm_watch controller/cli/looking/export
 controller/view/exports/beside
unit/controller/view/exports/test_trackers.py: controller/view/exports/jsonl_tail
 controller/view/exports/tensorboard controller/view/exports/wandb
unit/controller/view/test_site.py: controller/history/why controller/view/past/life
unit/protocol/wire/test_codec.py: protocol/ids protocol/messages/from_controller
 protocol/messages/from_workers protocol/messages/pieces
unit/strategies/test_own.py: controller/check/situations controller/check/strategies protocol/blame
unit/test_schema.py: protocol/settings
unit/workers/engines/torch/test_torch_engine.py: workers/engines/torch/cache workers/engines/torch/forward
 workers/models/small_copy
unit/workers/engines/vllm/test_vllm_engine.py: workers/engines/vllm/start workers/engines/vllm/weights
unit/workers/models/test_mixtures.py: protocol/model_shape
unit/workers/reward/kinds/test_answers.py: workers/reward/kinds/choice
unit/workers/reward/kinds/test_judge.py: workers/reward/kinds/judge_cache
unit/workers/reward/kinds/test_reward_model.py: protocol/rewards/classifier
unit/workers/reward/test_mixture.py: workers/reward/together
unit/workers/simulated/test_simulated_engine.py: workers/simulated/physics
unit/workers/test_stop_texts.py: workers/engines/stop_texts
integration/test_adapter_training.py: workers/models/lora workers/models/lora_layers
unit/workers/trainer/losses/test_corrections.py: workers/trainer/losses/aggregation
 workers/trainer/losses/importance workers/trainer/losses/ratios workers/trainer/losses/rejection
unit/workers/trainer/losses/test_losses_advantages.py: workers/trainer/losses/critic
unit/workers/trainer/publishing/test_copies.py: workers/trainer/interface
unit/workers/trainer/test_sharding.py: workers/trainer/token_batch
unit/workers/trainer/test_trainer.py: workers/trainer/batch workers/trainer/nonfinite_report
 workers/trainer/packed_forward workers/trainer/policy workers/trainer/state workers/trainer/worker
unit/controller/check/test_check_sandbox.py: workers/sandbox/probe
integration/test_trainer_algorithms.py: workers/trainer/critic
unit/workers/weights/test_weights_address.py: workers/host/overrides controller/core/worker_settings
unit/workers/weights/test_weights_store.py: workers/weights/manifest workers/weights/tensors
unit/workers/agent/kinds/test_agent_kinds.py: workers/agent/kinds/chosen_kind workers/agent/kinds/function
 workers/agent/kinds/gym workers/agent/kinds/results workers/agent/kinds/tool_schema
 workers/agent/kinds/tools workers/agent/policy
unit/workers/agent/kinds/test_openenv.py: workers/agent/kinds/openenv_texts
unit/workers/agent/test_renderer.py: workers/agent/probes
"""  # a test of tests/, and the modules without a test of their name whose functions it runs


def arrows(folder: str) -> Iterator[tuple[str, str, str]]:
    """Of each import below a folder: the file, and both modules as their names in it."""
    for file in sorted((ROOT / folder).rglob("*.py")):
        me = ".".join(file.relative_to(ROOT / folder).with_suffix("").parts)
        prefix = folder.replace("/", ".") + "."
        for name in imported(file):
            if name.startswith(prefix):
                yield str(file.relative_to(ROOT)), me, name.removeprefix(prefix)


@cache
def imported(file: Path) -> list[str]:
    """Dotted names of what a file imports, wherever in it: modules, and names in modules."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


@pytest.mark.parametrize(("package", "rooms"), [("controller", CONTROLLER), ("workers", WORKERS)])
def test_a_room_imports_only_those_below_it(package, rooms):
    found = {path.name for path in (ROOT / package).iterdir() if (path / "__init__.py").exists()}
    assert found == set(rooms), f"rooms of {package}: name each here, with the rooms that it may import"
    for file, me, other in arrows(package):
        mine, theirs = me.partition(".")[0], other.partition(".")[0]
        if "." not in me or theirs in (mine, package):  # controller.controller has a test of its own
            continue
        assert theirs in rooms[mine], (
            f"{file} imports {package}.{other}, but {mine} may import only {', '.join(sorted(rooms[mine]))}. "
            f"Move what both need down, or let who stands above both pass it in."
        )


def test_the_controller_stands_above_its_rooms():
    for file, _, other in arrows("controller"):
        is_cli = file.startswith("controller/cli/")
        assert other.partition(".")[0] != "controller" or is_cli or file == "controller/__init__.py", (
            f"{file} imports controller.controller, which only commands and programs use"
        )


def test_state_knows_no_decision():
    for file, _, other in arrows("controller/core"):
        if file.startswith("controller/core/state/"):
            assert not other.startswith(("decisions", "effects")), (
                f"{file} imports {other}: state is what is, decisions change it. Pass a value in."
            )


def test_effects_know_no_decision_and_are_shared():
    """A verb lies in core/effects because several decisions use it, and not to keep it off the list above."""
    users: dict[str, set[str]] = defaultdict(set)
    for file, me, other in arrows("controller/core"):
        if file.startswith("controller/core/effects/"):
            assert not other.startswith("decisions"), (
                f"{file} imports {other}: what only one decision wants to know lies with that decision."
            )
        if "." in me and other.startswith("effects."):  # core.py makes and hands round all of them
            users[".".join(other.split(".")[:2])].add(me)
    for file in sorted((ROOT / "controller/core/effects").glob("[a-z]*.py")):
        using = users[f"effects.{file.stem}"]
        assert len(using) > 1, f"{file.name} is used by {sorted(using)} alone: let it lie there"


def test_decisions_use_each_other_only_as_listed():
    allowed = {
        (user.strip(), used.strip())
        for line in DECISIONS.strip().splitlines()
        for user, _, row in [line.partition(">")]
        for used in row.split(",")
    }
    used = {
        (me, ".".join(other.split(".")[:2]))
        for _, me, other in arrows("controller/core/decisions")
        if me != ".".join(other.split(".")[:2])
    }
    assert used <= allowed, (
        f"{sorted(used - allowed)}: a decision imports another one that it did not. Put what both need into "
        "core/state, or let the core call both."
    )
    assert allowed <= used, f"{sorted(allowed - used)} are used no more: take them out of DECISIONS here"


def test_no_room_and_no_file_is_too_large_to_know():
    for package in PACKAGES:
        folders: dict[Path, int] = defaultdict(int)
        for file in sorted((ROOT / package).rglob("*.py")):
            name, text = str(file.relative_to(ROOT)), file.read_text()
            folders[file.parent] += file.name not in ("__init__.py", "__main__.py")
            lines, most = text.count("\n"), LONG_FILES.get(name, MOST_LINES)
            assert lines <= most, f"{name} has {lines} lines, at most {most}: split it by what it decides"
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    length = (node.end_lineno or 0) - node.lineno + 1
                    assert length <= MOST_FUNCTION_LINES or (name, node.name) in LONG_FUNCTIONS, (
                        f"{name}: {node.name} has {length} lines, at most {MOST_FUNCTION_LINES}: split it"
                    )
        for folder, count in folders.items():
            where = folder.relative_to(ROOT)
            assert count <= MOST_FILES, f"{where} has {count} files, at most {MOST_FILES}: make rooms in it"


def test_one_name_is_one_class():
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(str(file.relative_to(ROOT)))
    twice = {name: files for name, files in found.items() if len(files) > 1}
    assert not twice, f"{twice}: two public classes of one name; rename one to what it is of"


def test_modules_of_one_name_have_one_role():
    folders: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("[a-z]*.py")):
            folders[file.stem].append(str(file.parent.relative_to(ROOT)))
    twice = {name: places for name, places in folders.items() if len(places) > 1}
    said = [name for line in SAME_ROLE.strip().split("\n") for name in line.partition(":")[0].split()]
    new = {name: places for name, places in twice.items() if name not in said}
    assert not new, (
        f"{new}: two modules of one name; rename one to what it is of, or say in SAME_ROLE what they share"
    )
    assert not (old := set(said) - set(twice)), f"{old}: one module each; take them out of SAME_ROLE"


def modules() -> list[Path]:
    """All modules, but those that only declare: without a function, there is nothing to test."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("[a-z]*.py"))]
    return [file for file in files if re.search(r"^\s*(async )?def ", file.read_text(), re.MULTILINE)]


def own_test(module: Path) -> Path | None:
    """The test file of a module's name.

    In the folder of tests/unit that mirrors the module's: test_MODULE.py, test_MODULE_WHAT.py or
    test_ROOM_MODULE.py, where ROOM is a folder that it lies in. In other folders of tests: the last form.
    """
    place = module.relative_to(ROOT).parent
    alone = {f"test_{module.stem}"}
    with_room = {f"test_{room}_{module.stem}" for room in place.parts}
    mirror = ROOT / "tests/unit" / place
    for file in TEST_FILES:
        if file.stem in with_room and (file.parent == mirror or "unit" not in file.parts):
            return file
        if (file.stem in alone or file.stem.startswith(f"test_{module.stem}_")) and file.parent == mirror:
            return file
    return None


def covering() -> dict[Path, Path]:
    """Module -> the test that covers it, as COVERED_BY says."""
    rows = [row.partition(": ") for row in COVERED_BY.strip().replace("\n ", " ").splitlines()]
    return {ROOT / f"{name}.py": ROOT / "tests" / test for test, _, names in rows for name in names.split()}


@cache
def named_in(file: Path) -> set[Path]:
    """The modules that a file imports, or names in a string: to `python -m`, or as a folder of scripts."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = re.findall(r"\b(?:workers|protocol|controller|tests)\.[a-z_.]+[a-z]", node.value)
            names += ["controller.cli.main"] if "launch.py" in node.value else []
            folder = file.parent / node.value if node.value.isidentifier() else None
            found.update(folder.glob("*.py") if folder and (folder / "__init__.py").exists() else ())
        for name in names:
            place = ROOT / name.replace(".", "/")
            places = (
                place.with_suffix(".py"),
                place / "__init__.py",
                place / "__main__.py",
                file.parent / f"{name}.py",
            )
            found.update(path for path in places if path.is_file())
    return found


def reached_from(test: Path) -> set[Path]:
    """All modules that a test runs, as far as imports tell."""
    found, left = {test}, [test]
    while left:
        further = named_in(left.pop()) - found
        found |= further
        left += further
    return found


def test_every_module_has_a_test_of_its_name_or_is_named_with_the_one_that_covers_it():
    listed = covering()
    for module in modules():
        name, test = module.relative_to(ROOT), own_test(module)
        mirror = Path("tests/unit") / name.parent / f"test_{name.stem}.py"
        assert test or module in listed, (
            f"{name} has no test of its name: write {mirror} (test_{name.parent.name}_{name.stem}.py if "
            "another test file has that name), or name it in COVERED_BY here behind the test that covers it."
        )
        assert not (test and module in listed), (
            f"{name} has a test of its name, {test}: take it out of COVERED_BY here."
        )


def test_what_is_said_to_cover_a_module_runs_it():
    for module, test in covering().items():
        assert module.is_file(), f"{module.relative_to(ROOT)} is gone: take it out of COVERED_BY here"
        assert test.is_file(), (
            f"{test.relative_to(ROOT)} is gone: say in COVERED_BY what covers {module.name}"
        )
    for test in set(covering().values()):
        reached = reached_from(test)
        for module in [module for module, by in covering().items() if by == test]:
            assert module in reached, (
                f"{test.relative_to(ROOT)} is said to cover {module.relative_to(ROOT)}, and neither imports "
                "it nor anything that does: name the test that runs it."
            )


@pytest.mark.parametrize("package", ["torch", "vllm"])
def test_no_folder_of_tests_hides_that_a_package_is_missing(package):
    """The folder of each test file is searched for modules, where an empty folder counts as a package."""
    for folder in (ROOT / "tests").rglob(package):
        siblings = [file.name for file in folder.parent.glob("test_*.py")]
        assert not siblings, (
            f"{siblings} beside {folder.relative_to(ROOT)} let `import {package}` find that folder where "
            f"{package} is not installed: lay them one folder up, and name them in COVERED_BY here."
        )
