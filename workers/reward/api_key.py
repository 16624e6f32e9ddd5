"""The key of an endpoint, as an environment variable holds it.

Invariant: no sentence about a key has any of it.
"""

import os
import re

from protocol.errors import ConfigError

KEY = re.compile("[!-~]*")  # what a header takes


def api_key(variable: str) -> str:
    """The key, without white space around it, as files of secrets end in; "" if there is none.

    Raises: ConfigError for one that no header takes.
    """
    key = os.environ.get(variable, "").strip() if variable else ""
    if not KEY.fullmatch(key):
        raise ConfigError(
            f"The environment variable {variable} holds white space or characters beyond ASCII within the "
            "key of an endpoint. Expected the key alone, as it was given out."
        )
    return key
