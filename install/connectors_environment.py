"""The environment in which connectors to verifiers and OpenEnv are tested: its folder and its extras.

A run does not use it: it installs the connector that it names into its own environment.
"""

import install

CONNECTORS_ENVIRONMENT = install.ROOT / ".venv-connectors"
CONNECTORS_EXTRAS = ["workers", "test", "verifiers", "openenv", "openenv-core"]
