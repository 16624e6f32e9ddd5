"""The embedded engine on a shared device: weights and KV cache are there between a pull and a release.

Invariants: it is made without weights, so its first pull is the first use of the device; after `release` it
has neither weights nor KV cache; if it refuses weights, it leaves the device as free as before.
"""

from collections.abc import Iterator, Mapping

import torch

from protocol.settings import WorkerSettings
from workers.engines.stop_texts import stop_texts
from workers.engines.torch.engine import TorchEngine
from workers.models.model import pick_device, stop_tokens
from workers.models.storages import OnDevice, bytes_of, left_on, peak_of, storages_of
from workers.models.unfilled import unfilled_causal_lm


def make_colocated(settings: WorkerSettings, model_directory: str) -> "ColocatedEngine":
    """An engine without weights. Raises: ConfigError if the model cannot be made or run."""
    device = pick_device(settings.rollout.device)
    model = unfilled_causal_lm(model_directory, dtype=settings.model.dtype, device=device)
    stops = stop_tokens(model.generation_config, model_directory)
    texts = stop_texts(model_directory, settings.rollout.sampling, settings.evaluation_sampling)
    return ColocatedEngine(
        model, settings.rollout, stop_tokens=stops, stop_texts=texts, parks_turns=settings.agent.is_on
    )


class ColocatedEngine(TorchEngine):
    """A TorchEngine that can leave the device."""

    _is_proven = False  # whether decoding with a cache was checked, which needs weights

    def load_weights(self, policy_version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take the device, and these weights.

        Raises: ValueError on a wrong tensor, and then nothing has changed; ConfigError if the model with
        these weights cannot be run.
        """
        empty = [weight for weight in self._model.parameters() if not weight.untyped_storage().nbytes()]
        for weight in {id(weight): weight for weight in empty}.values():
            weight.untyped_storage().resize_(weight.numel() * weight.element_size())
        try:
            super().load_weights(policy_version, tensors)
        except ValueError:
            for storage in storages_of(empty):
                storage.resize_(0)
            raise
        if not self._is_proven:
            self._forward.check_decoding()
            self._is_proven = True

    def release(self) -> OnDevice:
        """Drop weights and KV cache; nothing is running."""
        assert not self.is_busy(), "what runs is interrupted first"
        device = self._model.device
        peak = peak_of(device, bytes_of(self._held()))
        self._prefixes.clear()
        self._parked.has_new_weights(keeps=False)
        self._forward.cache.clear()
        for storage in storages_of(self._model.parameters()):
            storage.resize_(0)
        return OnDevice(peak, left_on(device, bytes_of(self._held())))

    def _held(self) -> Iterator[torch.Tensor]:
        """All tensors that stay on the device between steps."""
        yield from self._model.parameters()
        yield from self._model.buffers()
        yield from self._forward.cache.tensors()
        yield from self._prefixes.tensors()
