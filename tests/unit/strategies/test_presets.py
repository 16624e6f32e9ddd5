"""Presets of `staleness.strategy`, and what is written out beside them."""

from controller.config.sections.staleness import StalenessSettings
from strategies.presets import PRESETS


def test_a_key_that_is_written_out_beats_the_preset():
    settings = StalenessSettings.model_validate({"strategy": "greedy", "routing": "round_robin"})
    assert (settings.routing, settings.synchronization) == ("round_robin", "greedy")
    assert StalenessSettings() == StalenessSettings.model_validate({"strategy": "staleflow"})
    for name, values in PRESETS.items():
        resolved = StalenessSettings.model_validate({"strategy": name})
        assert all(getattr(resolved, key) == value for key, value in values.items())
