"""The GPUs that a process would see are counted without asking a driver."""

import pytest

from protocol.machine.visible_gpus import visible_gpus


@pytest.mark.parametrize(
    ("variable", "gpus"),
    [
        (None, ("0", "1", "2")),
        ("", ()),
        ("2, 0", ("2", "0")),
        ("1,-1,2", ("1",)),
        ("GPU-8932f937,MIG-1/2", ("GPU-8932f937", "MIG-1/2")),
    ],
)
def test_gpus_are_counted_as_cuda_counts_them(variable, gpus, tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert visible_gpus(environment, tmp_path) == gpus
