"""The figures of a whole batch, for tests of what a metrics line says of it."""

from collections.abc import Iterable, Sequence

from controller.core.state.batches.contributions import Contribution
from controller.core.state.batches.figures import BatchFigures


def batch_metrics(
    contributions: Iterable[Contribution], train_version: int, sources: Sequence[str] = ()
) -> dict[str, object]:
    """Counted at once."""
    return BatchFigures(contributions, train_version, sources).line()
