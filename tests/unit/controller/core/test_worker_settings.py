"""What workers are told of a run's configuration."""

import pytest

from controller.config.models import Config
from controller.core.worker_settings import worker_settings

KWARGS = {"enable_thinking": False}


@pytest.mark.parametrize(("agent", "told"), [({}, {}), ({"function": "mine.py:play"}, KWARGS)])
def test_arguments_of_the_chat_template_are_told_where_an_agent_reads_them(agent, told):
    """Nobody else does, and what a run of an older release was not told could not be derived again."""
    config = Config.model_validate({"data": {"chat_template_kwargs": KWARGS}, "agent": agent})
    settings = worker_settings(config, "here", ())
    assert settings.template_kwargs == told
    assert ("template_kwargs" in settings.model_dump_json()) == bool(told)
