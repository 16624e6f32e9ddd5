"""The totals of a run for summary.json."""

from typing import TYPE_CHECKING

from controller.core.state.accounts import without_rollout
from controller.core.state.bottleneck import verdict
from controller.core.state.views.admission import batches_in_flight

if TYPE_CHECKING:
    from controller.core.core import Core


def summary(core: "Core") -> dict[str, object]:
    """Totals so far; `ending` is "" while the run goes on."""
    state = core.state
    accounts, config = state.accounts, state.config
    totals = accounts.summary(state.now) | state.device_figures
    totals["verdict"] = verdict(accounts.figures(cap=batches_in_flight(state)), config)
    if state.windows.total.windows:
        totals |= state.windows.total.figures()
    if config.trainer.is_supervised:
        totals = without_rollout(totals)
    return {
        "is_success": state.ending_is_success and state.ending is not None,
        "ending": _how_it_ended(core),
        "reason": state.ending or "",
        "steps_wanted": config.run.steps,
        **totals,
    }


def _how_it_ended(core: "Core") -> str:
    """`done`, `stopped` (in good order, before its last step) or `failed`; "" while it goes on."""
    state = core.state
    if state.ending is None:
        return ""
    if not state.ending_is_success:
        return "failed"
    return "stopped" if state.is_stopped and state.steps < state.config.run.steps else "done"
