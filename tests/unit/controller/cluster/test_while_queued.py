"""The scripts of workers on Slurm, run by a shell: whatever their controller does, they are there for it.

squeue, scontrol, srun, sleep and the worker are programs of this test. Each line of `queue` is what squeue
says of the controller's job at one look, each of `ends` the exit code of one worker.
"""

import os
import re
import subprocess

import pytest

from controller.cluster.render import LOOKS, render_slurm
from controller.config.load import load_config
from protocol.errors import NoAnswer

CONFIG = "examples/cluster.yaml"
AGENT = ("agent.function=agents.py:episode", "agent.workers=3")
RUNNING, ELSEWHERE, PENDING, GONE = (
    "42 RUNNING node1",
    "42 RUNNING node2",
    "42 PENDING n/a",
    "41 RUNNING node9",
)
NEXT_LINE = """#!/bin/bash
next() { head -n 1 "{at}/$1"; sed -i 1d "{at}/$1"; }
"""
PROGRAMS = {
    "squeue": 'said=$(next queue); [ "$said" != silence ] || exit 1; printf "%s\\n" "43 RUNNING x" "$said"',
    "scontrol": "seq -f head%g 100000",  # of which one line is read, and the rest, too
    "srun": 'while [[ $1 == --* ]]; do shift; done; "$@"',
    "sleep": ":",
    "python": 'echo "$*" >> "{at}/attached"; exit "$(next ends)"',
}


@pytest.fixture
def run(tmp_path, monkeypatch, request):
    """Run the script of a role: its exit code, and the arguments of each worker."""
    monkeypatch.chdir(request.config.rootpath)
    files = render_slurm(load_config(CONFIG, AGENT), CONFIG)
    (tmp_path / "bin").mkdir()
    for name, text in PROGRAMS.items():
        program = tmp_path / "bin" / name
        program.write_text((NEXT_LINE + text + "\n").replace("{at}", str(tmp_path)))
        program.chmod(0o755)

    def run(role: str, queue: list[str], ends: list[int], *, job: str = "44") -> tuple[int, list[str]]:
        (tmp_path / "queue").write_text("".join(f"{line}\n" for line in queue))
        (tmp_path / "ends").write_text("".join(f"{code}\n" for code in ends))
        (tmp_path / "attached").write_text("")
        (tmp_path / "job").write_text(files[f"{role}.sbatch"])
        environment = os.environ | {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "CONTROLLER_JOB": "42",
            "STALEFLOW_PYTHON": "python", "SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "head[1-2]",
        }  # fmt: skip
        done = subprocess.run(["bash", tmp_path / "job"], env=environment, capture_output=True, timeout=60)
        assert not done.stderr, done.stderr
        return done.returncode, (tmp_path / "attached").read_text().splitlines()

    return run


def addresses(attached: list[str]) -> list[str]:
    return [next(word for word in line.split() if "://" in word) for line in attached]


def at(*nodes: str) -> list[str]:
    return [f"tcp://{node}:29500" for node in nodes]


LATE = NoAnswer.EXIT_CODE
WORKERS = ("rollout", "agent")


@pytest.mark.parametrize("role", [*WORKERS, "trainer"])
def test_a_controller_that_listens_late_is_tried_again(run, role):
    code, attached = run(role, [RUNNING] * 3 + [GONE], [LATE, LATE, 0])
    assert code == 0
    assert addresses(attached) == at("node1", "node1", "node1")
    assert all(
        f"--role {role} --key /shared/staleflow/keys/ledger/ledger-{role}.key" in line for line in attached
    )


@pytest.mark.parametrize("role", [*WORKERS, "trainer"])
def test_a_controller_that_is_queued_again_is_looked_up_where_it_begins(run, role):
    code, attached = run(role, [RUNNING, PENDING, PENDING, ELSEWHERE, GONE], [LATE, 0])
    assert code == 0
    assert addresses(attached) == at("node1", "node2")


def test_a_worker_that_left_with_a_run_which_is_queued_again_comes_back(run):
    code, attached = run("rollout", [RUNNING, RUNNING, PENDING, ELSEWHERE, GONE], [0, 0])
    assert code == 0
    assert addresses(attached) == at("node1", "node2")


@pytest.mark.parametrize("role", [*WORKERS, "trainer"])
def test_one_that_was_told_to_leave_while_the_run_goes_on_is_not_started_again(run, role):
    code, attached = run(role, [RUNNING] * (LOOKS + 9), [0, 0, 0])
    assert (code, len(attached)) == (0, 1)


@pytest.mark.parametrize("role", WORKERS)
@pytest.mark.parametrize("failure", [1, 2, 137])
def test_one_that_was_refused_or_failed_ends_with_its_code(run, role, failure):
    code, attached = run(role, [RUNNING] * 3, [failure, 0])
    assert (code, len(attached)) == (failure, 1)


def test_a_trainer_of_which_a_rank_died_begins_anew(run):
    code, attached = run("trainer", [RUNNING] * 2 + [GONE], [1, 0])
    assert (code, len(attached)) == (0, 2)
    assert "--nnodes=2" in attached[0]
    assert attached[0] == attached[1]


def test_trainers_that_share_a_node_have_stores_of_their_own(run):
    """Else the second is a guest in the store of the first, and fails when that one ends."""
    lines = [run("trainer", [RUNNING, GONE], [0], job=job)[1][0] for job in ("44", "45", "8999044")]
    ports = [int(re.search(r" --rdzv-endpoint=head1:(\d+) ", line)[1]) for line in lines]
    assert len({*ports}) == 3
    assert all(20000 <= port < 29000 for port in ports)


def test_slurm_that_does_not_answer_for_a_while_ends_nothing(run):
    code, attached = run("rollout", ["silence", RUNNING, "silence", "silence", RUNNING, GONE], [LATE, 0])
    assert (code, len(attached)) == (0, 2)


def test_without_a_controller_in_the_queue_nobody_waits(run):
    assert run("rollout", [PENDING, "42 CONFIGURING node1", GONE], []) == (0, [])
