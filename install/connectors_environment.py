"""The environment in which connectors to other people's environments are tested: where it is, what it has.

A run needs none of its own: it installs the one connector that it names into its environment.
"""

import install

CONNECTORS_ENVIRONMENT = install.ROOT / ".venv-connectors"
CONNECTORS_EXTRAS = ["workers", "test", "verifiers", "openenv", "openenv-core"]
