"""Each module has a test of its name, or is named here with the test that covers it. A failure says how to
mend it."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.unit.test_rooms import PACKAGES, ROOT

TEST_FILES = sorted((ROOT / "tests").rglob("test_*.py"))
COVERED_BY = """
conformance/test_engine_scheduling.py: workers/engines/interface workers/engines/vllm/running
integration/test_agent_worker.py: workers/agent/child workers/agent/pipe workers/agent/pool
 workers/agent/process
integration/test_agent_door.py: workers/agent/kinds/command workers/children/program
integration/test_code_verdicts.py: workers/sandbox/job
integration/test_compiled_core.py: controller/cli/compile controller/compiled/preferred
integration/test_connected_verifiers.py: workers/agent/kinds/verifiers workers/agent/kinds/verifiers_policy
integration/test_connection_floods.py: protocol/wire/server
integration/test_evaluated_without_a_run.py: workers/evaluate/checkpoint
unit/workers/evaluate/test_evaluator.py: workers/evaluate/played
integration/test_forks.py: controller/host/forks workers/host/fork_server workers/models/renewal
integration/test_fuzzed_server.py: protocol/wire/sockets
integration/test_killed_while_starting.py: workers/children/pool
integration/test_prompts_of_a_shell.py: controller/host/shell
integration/test_reasoning_gym_rewards.py: workers/reward/kinds/reasoning_gym
integration/test_reconnections.py: protocol/wire/dead_links
integration/test_remote_workers.py: controller/cli/remote workers/host/stop
integration/test_reward_memory.py: workers/children/keeper
integration/test_reward_pool.py: workers/children/packets workers/children/pipe workers/children/process
 workers/reward/child workers/reward/process
integration/test_sandbox.py: workers/link/descendants workers/sandbox/box workers/sandbox/bubblewrap
 workers/sandbox/chosen_box workers/sandbox/inside/ask workers/sandbox/inside/begin
 workers/sandbox/inside/peer workers/sandbox/inside/run workers/sandbox/inside/serve
 workers/sandbox/seccomp workers/sandbox/supervisor
 workers/sandbox/usage workers/sandbox/users workers/sandbox/warden
integration/test_security.py: protocol/wire/connection protocol/wire/security
integration/test_stacks.py: controller/cli/stacks controller/view/stacks protocol/stacks workers/reward/pipe
integration/test_supervisor.py: controller/host/supervisor
integration/test_vllm_adapter.py: workers/engines/vllm/extension
integration/test_vllm_mixtures.py: workers/engines/vllm/experts
integration/test_vllm_runs.py: workers/engines/vllm/kept workers/engines/vllm/statistics
integration/test_weights_channel.py: workers/weights/exchange_process
 workers/weights/fetch
integration/test_whole_runs.py: workers/host/serve workers/models/prepare
properties/test_ledger_buffers.py: controller/core/state/batches/counting_ledger
simulation/test_going_back.py: controller/durability/violation controller/host/going_back
simulation/test_oracle.py: controller/core/decisions/evaluation/evaluation_schedule
 controller/core/decisions/placement/reports
 controller/core/decisions/training/training
simulation/test_restarts.py: controller/core/state/policy_versions
simulation/test_simulated_runs.py: controller/simulation/simulated_workers controller/simulation/faults
 controller/simulation/host workers/simulated/link workers/simulated/rollout workers/simulated/text
simulation/test_stragglers.py: controller/core/decisions/placement/stragglers
unit/workers/agent/door/test_bad_requests.py: workers/agent/door/body workers/agent/door/refusal
unit/workers/agent/door/test_chat_request.py: workers/agent/door/request_fields
unit/workers/agent/kinds/test_other_systems.py: protocol/agents/function_shapes
unit/workers/agent/door/test_door_clients.py: workers/agent/door/completion
 workers/agent/door/keys
unit/controller/core/decisions/supply/test_episodes.py: controller/core/decisions/supply/episode_starts
 controller/core/effects/trials
unit/controller/core/decisions/supply/test_forks_of_episodes.py: controller/core/state/batches/contributions
integration/test_check_chat_template.py: workers/agent/try_template
unit/controller/check/test_check_agents.py: workers/agent/try_agent
unit/controller/check/test_check_data.py: controller/check/plugins controller/check/prompts
 controller/check/reward protocol/rewards/shapes workers/reward/kinds/function workers/reward/kinds/interface
 workers/reward/try_reward
unit/controller/check/test_machine.py: controller/cli/doctor
unit/controller/check/test_named_rewards.py: controller/config/reward_rules protocol/rewards/kinds
unit/controller/cli/test_command_line.py: controller/cli/say
unit/controller/cli/test_said_by_commands.py: controller/cli/looking/history
unit/controller/cluster/test_render.py: controller/cli/render
unit/controller/config/test_config_strategies.py: controller/config/sections/staleness strategies/kinds
 strategies/views
unit/controller/config/test_load.py: controller/config/models controller/config/rules
unit/controller/core/decisions/placement/test_dispatch.py:
 controller/core/state/views/admission controller/core/state/views/instances
unit/workers/link/test_machine_use.py: workers/link/process_memory
unit/controller/core/test_run_alarms.py: controller/core/state/views/snapshot
unit/controller/core/decisions/workers/test_plausibility.py: controller/core/hearing
 controller/core/state/told
unit/controller/core/decisions/supply/test_episodes.py: controller/core/effects/turns
 controller/core/state/agents/episodes protocol/agents/settings
unit/controller/core/decisions/workers/test_limits.py: controller/core/state/asks controller/core/waiting_for
unit/controller/core/decisions/workers/test_reattachment.py: controller/core/state/registry
unit/controller/core/state/test_source_mixture.py: controller/config/data controller/config/data_rules
 strategies/schedules
unit/controller/core/state/test_transition_coverage.py: controller/core/state/groups
unit/controller/core/test_core.py: controller/core/state/run_state controller/core/totals
unit/controller/core/test_snapshot_in_slices.py: controller/core/cluster_snapshot
unit/controller/durability/test_payload_given.py: protocol/messages/from_agents
unit/controller/durability/test_kept_payload.py: controller/durability/kept_sets
unit/controller/data/test_fingerprints.py: controller/data/sources controller/data/text_files
unit/controller/data/test_formats.py: controller/data/tables
unit/controller/data/test_prompts.py: controller/data/saved
unit/controller/host/test_prompt_reader.py: controller/host/daemon_thread
unit/controller/host/test_stepper.py: controller/host/resumed_run
simulation/test_simulation_assumed.py: controller/cli/simulate
simulation/test_simulation_compare.py: controller/simulation/report
simulation/test_simulation_from_run.py: controller/cli/planning/from_run
unit/controller/test_file_modes.py: controller/host/log_file workers/rollout/handover
unit/controller/cli/test_cli_control.py: controller/view/orders
unit/controller/view/door/test_beside.py: controller/view/door/resident
unit/controller/view/exports/test_outgoing.py: controller/cli/alarm_watch controller/cli/looking/export
 controller/view/exports/beside
unit/controller/view/exports/test_trackers.py: controller/view/exports/jsonl_tail
 controller/view/exports/tensorboard controller/view/exports/wandb
unit/controller/view/past/test_timeline.py: controller/view/past/timeline_picture
unit/protocol/wire/test_codec.py: protocol/ids protocol/messages/device protocol/messages/from_controller
 protocol/messages/from_workers protocol/messages/pieces protocol/messages/to_agents
unit/strategies/test_own.py: controller/check/situations controller/check/strategies protocol/blame
unit/test_schema.py: protocol/settings protocol/rewards/settings protocol/trainer/settings
unit/workers/engines/torch/test_torch_engine.py: workers/engines/torch/cache workers/engines/torch/forward
 workers/models/small_copy
unit/workers/engines/vllm/test_vllm_engine.py: workers/engines/vllm/start workers/engines/vllm/weights
unit/workers/models/test_apart.py: workers/trainer/sequence/no_leak
unit/workers/models/test_mixtures.py: protocol/model_shape
unit/workers/reward/kinds/test_answers.py: workers/reward/kinds/choice
unit/workers/reward/kinds/test_judge.py: workers/reward/api_key workers/reward/kinds/judge_cache
unit/workers/reward/kinds/test_reward_model.py: protocol/rewards/classifier
unit/workers/reward/test_encoding.py: workers/reward/begun_answers
unit/workers/reward/test_mixture.py: workers/reward/together
unit/workers/simulated/test_simulated_engine.py: workers/simulated/physics
unit/workers/test_stop_texts.py: workers/engines/stop_texts
integration/test_adapter_training.py: workers/models/lora workers/models/lora_layers
unit/workers/trainer/losses/test_corrections.py: workers/trainer/losses/aggregation
 workers/trainer/losses/importance workers/trainer/losses/ratios workers/trainer/losses/rejection
unit/workers/trainer/losses/test_losses_advantages.py: workers/trainer/losses/critic
unit/controller/core/decisions/placement/test_shared_device.py: controller/core/device_sharing
unit/workers/engines/torch/test_colocated_engine.py: workers/engines/made_engine workers/models/unfilled
unit/workers/trainer/publishing/test_copies.py: workers/trainer/interface
unit/workers/trainer/saved/test_kept_aside.py: workers/models/storages
unit/workers/trainer/test_sharding.py: workers/trainer/token_batch
unit/workers/trainer/test_trainer.py: workers/trainer/batch workers/trainer/nonfinite_report
 workers/trainer/packed_forward workers/trainer/policy workers/trainer/state workers/trainer/worker
unit/controller/check/test_check_sandbox.py: workers/sandbox/probe
unit/controller/given/test_arguments.py: controller/data/iterables
unit/workers/weights/test_weights_store.py: workers/weights/file_segment workers/weights/manifest
 workers/weights/tensors
unit/workers/agent/kinds/test_agent_kinds.py: workers/agent/kinds/chosen_kind workers/agent/kinds/function
 workers/agent/kinds/gym workers/agent/kinds/results
 workers/agent/kinds/tools workers/agent/policy
unit/workers/agent/kinds/test_openenv.py: workers/agent/kinds/openenv_texts
unit/test_built_in_engines.py: protocol/engines
unit/workers/agent/rendering/test_renderer.py: workers/agent/rendering/probes
unit/workers/agent/rendering/test_own_renderers.py: workers/agent/rendering/chosen
"""  # a test of tests/, and the modules without a test of their name whose functions it runs


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
