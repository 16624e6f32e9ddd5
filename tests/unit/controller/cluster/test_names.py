"""Names of runs and files of which Slurm or Kubernetes can make nothing are refused with what would do."""

import re

import pytest
import yaml

from controller.cli.main import main
from controller.cluster.render import render_kubernetes, render_slurm
from controller.config.load import load_config
from protocol.errors import ConfigError
from protocol.wire.security import make_keys

CONFIG = "examples/cluster.yaml"
AGENT = ("agent.function=agents.py:episode", "agent.workers=3")
SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # as an API server has it
RENDERERS = {"slurm": render_slurm, "kubernetes": render_kubernetes}


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)


def named(where: str, name: str, *overrides: str) -> dict[str, str]:
    return RENDERERS[where](load_config(CONFIG, [f"run.name={name!r}", *overrides]), CONFIG)


@pytest.mark.parametrize(
    ("where", "name", "instead"),
    [
        ("slurm", "a;touch $PWNED;#", "a-touch-PWNED"),
        ("slurm", "My run", "My-run"),
        ("slurm", "x" * 57, "x" * 56),
        ("slurm", "-x", "x"),
        ("kubernetes", "a;touch $PWNED;#", "a-touch-pwned"),
        ("kubernetes", "My run", "my-run"),
        ("kubernetes", "my_run", "my-run"),
        ("kubernetes", "Qwen3-0.6B", "qwen3-0-6b"),
        ("kubernetes", "2026", "run-2026"),
        ("kubernetes", "run-", "run"),
        ("kubernetes", "x" * 53, "x" * 52),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_with_one_that_can(where, name, instead):
    with pytest.raises(ConfigError) as refused:
        named(where, name)
    assert f"run.name is {name!r}, which names " in str(refused.value)
    assert str(refused.value).endswith(f"run.name={instead}.")
    assert named(where, instead)


@pytest.mark.parametrize("where", RENDERERS)
def test_a_newline_at_the_end_of_a_name_is_no_end_of_it(where):
    config = load_config(CONFIG)
    config = config.model_copy(update={"run": config.run.model_copy(update={"name": "run\n"})})
    with pytest.raises(ConfigError, match=r"run\.name is 'run\\n'"):
        RENDERERS[where](config, CONFIG)


def test_the_longest_names_that_are_taken_give_none_that_a_cluster_refuses(tmp_path):
    most = "x" * 52
    manifests = named("kubernetes", most, *AGENT)["staleflow.yaml"]
    for manifest in yaml.safe_load_all(manifests):
        name = manifest["metadata"]["name"]
        assert SERVICE.fullmatch(name), name
        assert len(name) <= 63
        assert all(len(value) <= 63 for value in manifest["metadata"]["labels"].values())
    with pytest.raises(ConfigError, match="at most 51 letters"):  # of the pod NAME-trainer-100
        named("kubernetes", most, "trainer.ranks=101", "cluster.trainer_nodes=101")
    longest = "x" * 56
    assert "--name" in named("slurm", longest, *AGENT)["submit.sh"]
    for role in ("trainer", "rollout", "agent"):
        make_keys(tmp_path / "keys", f"{longest}-{role}", (role,))


def test_a_file_that_no_config_map_can_hold_is_refused_before_kubectl_does(tmp_path, capsys):
    file = tmp_path / "my config.yaml"
    file.write_text("run: {name: demo}\n")
    assert main(["render", "kubernetes", str(file)]) == 2
    assert "my config.yaml' becomes an entry of a ConfigMap" in capsys.readouterr().err
    assert main(["render", "slurm", str(file)]) == 0, "there it is a word that is quoted"
