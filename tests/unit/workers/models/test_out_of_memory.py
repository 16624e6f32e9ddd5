"""Memory is spoken of where it ran out, and only there."""

import pytest
import torch

from protocol.errors import RunError
from workers.models.out_of_memory import is_of_memory
from workers.trainer.ranks import torch_errors_in_words


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (RuntimeError("one of the variables has been modified by an inplace operation"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_memory_is_spoken_of_where_it_is_memory(error, is_memory, caplog):
    assert is_of_memory(error) is is_memory
    if isinstance(error, RuntimeError):
        with pytest.raises(RunError) as raised, torch_errors_in_words():
            raise error
        assert ("emory ran out" in str(raised.value)) is is_memory
        assert "rank" not in str(raised.value)
        assert "Traceback" in caplog.text
