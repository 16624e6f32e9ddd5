"""What failures of generation come to: a response that fails three times, and siblings that fail once."""

from protocol import messages
from tests.support.core_run import Run


def siblings(**sections):
    """Four responses to one prompt, all on rollout-0."""
    rollout = {"instances": 1, "group_size": 4, "max_response_tokens": 10, "max_running": 16}
    run = Run(rollout=rollout, controller={"lease_s": 100.0}, **sections)
    routes = run.start_groups(1)
    assert len(routes) == 4
    return run, routes


def test_siblings_that_fail_together_have_failed_once():
    run, routes = siblings()
    for route in routes:
        run.say("rollout-0", messages.GenerationFailed(0, route.member, route.attempt, "CUDA error"))
    assert run.core.state.accounts.counts["generation_failures"] == 4
    assert run.core.state.accounts.counts["prompts/set_aside"] == 0


def test_siblings_that_get_no_token_in_time_move_together_and_are_not_set_aside():
    run, _ = siblings(limits={"token_s": 5.0})
    while run.now < 6.0:
        run.say("rollout-0", messages.Beat(), at=run.now + 0.5)
    assert run.core.state.accounts.counts["limits/silent"] == 4
    assert run.core.state.accounts.counts["prompts/set_aside"] == 0


def test_a_response_that_fails_three_times_sets_its_prompt_aside_and_failures_are_forgotten_with_it():
    run = Run(instances=1)
    route = run.start_groups(3)[0]
    for _ in range(2):
        run.say("rollout-0", messages.GenerationFailed(route.group, route.member, route.attempt, "no room"))
        (route,) = run.sent(messages.Route)
        assert run.core.state.accounts.counts["prompts/set_aside"] == 0
    run.say("rollout-0", messages.GenerationFailed(route.group, route.member, route.attempt, "no room"))
    assert run.core.state.accounts.counts["prompts/set_aside"] == 1
    (other,) = [route for route in run.sent(messages.Route) if route.group == 2][:1]
    run.say("rollout-0", messages.GenerationFailed(2, other.member, other.attempt, "no room"))
    assert {id.group for id in run.core.reports._failures} == {2}
