"""Options that all tests share."""

import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("STALEFLOW_COMPILED", "0")  # tests are of the sources, whatever was compiled here

from tests.support.forgotten_stores import close_forgotten_stores
from tests.support.passed_before import PassedBefore, state_of_code

FEW = 10

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # no test asserts a time: a busy machine makes none fail


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--few-examples`, for `launch.py test --fast`, and `--passed`, for `--thorough`."""
    parser.addoption("--few-examples", action="store_true", help=f"{FEW} examples of each property at most")
    parser.addoption("--passed", help="leave out the tests that this file names, and add those that pass")


def pytest_configure(config: pytest.Config) -> None:
    """Do not look for garbage while the tests are imported: nothing of it goes away, 4 s of 11."""
    gc.disable()
    close_forgotten_stores()
    if file := config.getoption("--passed"):
        config.pluginmanager.register(PassedBefore(Path(file), state_of_code()))


def pytest_collection_finish() -> None:
    """Look for garbage again, in what the tests make from now on."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the type checker, which takes longest; cut down the examples of properties, also of those
    that say how many they want."""
    items.sort(key=lambda item: item.path.name != "test_tools.py")
    if not config.getoption("--few-examples"):
        return
    for item in items:
        case, function = getattr(item, "cls", None), getattr(item, "obj", None)
        if machine := getattr(case, "settings", None):
            case.settings = few(machine)
        elif getattr(function, "is_hypothesis_test", False):
            function = getattr(function, "__func__", function)
            function._hypothesis_internal_use_settings = few(
                getattr(function, "_hypothesis_internal_use_settings", None) or settings()
            )


def few(asked: settings) -> settings:
    """The same, with `FEW` examples at most."""
    return settings(asked, max_examples=min(FEW, asked.max_examples))
