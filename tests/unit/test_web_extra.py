"""What pages of a run cost who installs them, and who does not."""

import tomllib

from tests.support.extra import PYPROJECT, added_by, closure

MOST_BYTES = 3_000_000


def test_the_view_brings_six_small_packages_and_the_base_none_of_them():
    added = added_by("web")
    assert set(added) == {"anyio", "click", "h11", "idna", "starlette", "uvicorn"}
    assert sum(added.values()) < MOST_BYTES
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    assert not closure(project["dependencies"]) & set(added)
