from typing import Any

connect_mcp: Any
call_mcp: Any
