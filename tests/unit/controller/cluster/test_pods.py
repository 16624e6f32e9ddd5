"""How a container ends, which tells its Job whether to start a pod again: real shells, a made-up Python."""

import contextlib
import os
import signal
import subprocess

import pytest
import yaml

from controller.cluster.render import render_kubernetes
from controller.config.load import load_config

CONFIG = "examples/cluster.yaml"
AGENT = ("agent.function=agents.py:episode", "agent.workers=3")
PYTHON = """#!/bin/bash
[ -z "$ENDS" ] || exit "$ENDS"
trap 'echo left > "{at}/left"; kill $!; exit 0' TERM
sleep 60 >/dev/null 2>&1 &
echo >"{at}/begun"
wait
"""


def jobs(*words):
    documents = yaml.safe_load_all(
        render_kubernetes(load_config(CONFIG, [*AGENT, *words]), CONFIG)["staleflow.yaml"]
    )
    return {
        document["metadata"]["name"].removeprefix("ledger-"): document
        for document in documents
        if document["kind"] == "Job"
    }


@pytest.fixture
def begin(tmp_path, monkeypatch, request):
    """Begins the container of a role; its program ends with `ends`, or waits for SIGTERM and ends with 0."""
    monkeypatch.chdir(request.config.rootpath)
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text(PYTHON.replace("{at}", str(tmp_path)))
    program.chmod(0o755)
    begun = []

    def begin(role, *words, ends=""):
        container = jobs(*words)[role]["spec"]["template"]["spec"]["containers"][0]
        environment = {"PATH": f"{program.parent}:{os.environ['PATH']}", "POD_NAME": "pod", "ENDS": ends}
        if not ends:
            os.mkfifo(tmp_path / "begun")
        # Kubernetes turns `$$` into `$`
        command = [word.replace("$$", "$") for word in container["command"]]
        begun.append(subprocess.Popen(command, env=environment, process_group=0))
        if not ends:
            (tmp_path / "begun").read_text()
        return begun[-1]

    yield begin
    for process in begun:  # as the end of the first process ends a container
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("role", ["controller", "trainer", "rollout", "agent"])
@pytest.mark.parametrize("code", [0, 2, 75])
def test_a_program_that_ends_by_itself_ends_its_pod_with_its_code(begin, role, code):
    assert begin(role, ends=str(code)).wait(30) == code


@pytest.mark.parametrize("role", ["controller", "trainer", "rollout", "agent"])
def test_a_pod_that_is_told_to_end_is_not_done_so_that_its_job_starts_another(begin, role):
    process = begin(role)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) != 0


@pytest.mark.parametrize(
    ("role", "words", "leaves"),
    [
        ("rollout", (), True),
        ("agent", (), True),
        ("trainer", ("cluster.trainer_nodes=1",), True),
        ("trainer", ("cluster.trainer_nodes=2",), False),  # its other ranks would end well, and for good
        ("controller", (), False),  # the run would end in order, and send its workers away
    ],
)
def test_only_who_is_not_waited_for_by_other_pods_leaves_in_order(begin, tmp_path, role, words, leaves):
    process = begin(role, *words)
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    assert (tmp_path / "left").exists() is leaves


def test_each_pod_of_a_job_may_be_started_again_as_often_as_if_it_were_alone():
    specs = {role: job["spec"] for role, job in jobs("rollout.instances=64").items()}
    limits = {role: spec["backoffLimit"] / spec["parallelism"] for role, spec in specs.items()}
    assert specs["rollout"]["parallelism"] == 64
    assert set(limits.values()) == {100}
