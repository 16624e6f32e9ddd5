"""The torch engine, which writes down what the settings of its worker say of a secret."""

import os
from pathlib import Path

from workers.engines.torch import make_engine


def make(settings, model_directory):
    Path(os.environ["TOLD"]).write_text(str(settings.rollout.vllm.engine_args["token"]))
    return make_engine(settings, model_directory)
