"""What `render` puts into scripts and manifests is refused unless Slurm and Kubernetes take it."""

import pytest

from controller.config.load import load_config
from protocol.errors import ConfigError

CONFIG = "examples/cluster.yaml"


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("shared_dir=scratch/me", "expected a path from the root of the file system"),
        ('shared_dir="/a b"', "expected a path from the root"),
        ('shared_dir="/a\\n"', "expected a path from the root"),
        ("shared_dir=~somebody/x", "expected a path from the root"),
        ("time_limit=24h", "expected a time as Slurm has it"),
        ('time_limit="one 5\\n#SBATCH --uid=0"', "expected a time as Slurm has it"),
        ('time_limit="5\\n"', "expected a time as Slurm has it"),
        ('partition="gpu --wrap"', "without blanks"),
        ('partition="gpu\\nrm -rf ~"', "without blanks"),
        ("controller_partition='cpu;x'", "without blanks"),
        ("account='$(id)'", "without blanks"),
        ("namespace='x;touch y'", "letters of a to z"),
        ("namespace=My_NS", "letters of a to z"),
        ("namespace=''", "letters of a to z"),
        ("image=''", "the name of an image"),
        ('image="a b"', "the name of an image"),
        ("storage_class=Fast_One", "letters of a to z"),
    ],
)
def test_what_would_become_something_else_is_refused_in_words(override, expected):
    with pytest.raises(ConfigError) as refused:
        load_config(CONFIG, [f"cluster.{override}"])
    said = str(refused.value)
    assert f"cluster.{override.partition('=')[0]} (command line): is " in said
    assert expected in said


@pytest.mark.parametrize(
    "override",
    [
        "shared_dir=/", "shared_dir='/data/ü+it''s'", "shared_dir=~/shared", "time_limit='90'",
        "time_limit='2-12'", "time_limit='1-02:03:04'", "partition='gpu,gpu_long.a100'", "account=lab-2/sub",
        "account=abc@h100",
        "namespace=team-7",
        "image='localhost:5000/lab/staleflow@sha256:ab12'", "storage_class=nfs.csi.k8s.io",
    ],
)  # fmt: skip
def test_what_clusters_have_is_taken(override):
    load_config(CONFIG, [f"cluster.{override}"])
