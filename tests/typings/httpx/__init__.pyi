"""httpx comes with verifiers: what is used of it here."""

from typing import Any

AsyncClient: Any
codes: Any
