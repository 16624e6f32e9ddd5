"""Reads the API key of an endpoint from an environment variable.

Invariant: no error message contains any part of the key.
"""

import os
import re

from protocol.errors import ConfigError

KEY = re.compile("[!-~]*")  # characters that a header can hold


def api_key(variable: str) -> str:
    """The key, without white space around it, as files of secrets end in; "" if there is none.

    Raises: ConfigError if it has characters that a header cannot hold.
    """
    key = os.environ.get(variable, "").strip() if variable else ""
    if not KEY.fullmatch(key):
        raise ConfigError(
            f"The environment variable {variable} holds white space or characters beyond ASCII within the "
            "key of an endpoint. Expected the key alone, as it was given out."
        )
    return key
