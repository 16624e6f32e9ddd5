"""What a host may be told to have as its own address; the configuration refuses the rest."""

import pytest

from controller.config.load import load_config
from protocol.errors import ConfigError
from protocol.settings import network_of


@pytest.fixture
def file(tmp_path):
    (tmp_path / "run.yaml").write_text("run: {name: mine}\n")
    return tmp_path / "run.yaml"


@pytest.mark.parametrize(
    "said", ["10.0.0.7", "fd00::7", "10.0.0.0/16", "10.0.0.7/16", "0.0.0.0/0", "127.0.0.3"]
)
def test_an_address_or_a_network_is_taken(said, file):
    assert network_of(said) is not None
    assert load_config(file, [f"weights.host='{said}'"]).weights.host == said


@pytest.mark.parametrize(
    "said",
    ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "eth0", "node7", "[::1]", "10.0.0"],
)
def test_what_no_single_host_has_is_refused_where_it_is_written(said, file):
    assert network_of(said) is None
    with pytest.raises(ConfigError) as refused:
        load_config(file, [f"weights.host='{said}'"])
    assert f"weights.host (command line): is {said!r}; expected the address of a host" in str(refused.value)


def test_a_run_that_says_nothing_is_fine(file):
    assert load_config(file).weights.host == ""
