"""Whatever is measured, pacing stays within the bound and its own limits, and forgets in time."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from strategies.pacing import LEAST_BATCHES, Pace, StepView, adaptive, after_step, first_cap, hold_s
from strategies.views import AdmissionView

SHARE = st.floats(0, 1)


class Paced(RuleBasedStateMachine):
    """A run whose steps are measured, and whose cap and mu are what the rule answered last."""

    @initialize(
        bound=st.integers(0, 8), batch=st.integers(1, 512), spare=st.integers(0, 64), most=st.floats(0, 1)
    )
    def begin(self, bound, batch, spare, most):
        self.bound, self.places, self.mu, self.most = bound, batch + spare, most, most
        cap = first_cap(max_staleness=bound, batch_groups=batch, spare_groups=spare)
        self.pace = Pace(cap)
        self.view = AdmissionView(bound, batch, 0, 0, 0, 0, 0, spare_groups=spare, cap=cap)
        self.longest = 0.0

    @rule(
        period_s=st.floats(1e-9, 1e6), starved=SHARE, late=SHARE, gated=SHARE, long_share=SHARE,
        elasticity=st.floats(-1, 2), adapts_mu=st.booleans(),
    )  # fmt: skip
    def step(self, period_s, starved, late, gated, long_share, elasticity, adapts_mu):
        late *= 1 - starved  # both are parts of one step
        self.longest = max(self.longest, period_s)
        self.pace = after_step(
            self.pace,
            period_s=period_s,
            starved_s=starved * period_s,
            late_s=late * period_s,
            window=self.bound + 1,
        )
        view = self.view._replace(cap=self.pace.cap)
        step = StepView(self.pace, view, self.mu, self.most, adapts_mu, gated, long_share, elasticity)
        cap, mu = adaptive(step)
        assert adaptive(step) == (cap, mu), "asked again, it answers otherwise"
        assert adapts_mu or mu == self.mu
        self.pace, self.mu = self.pace._replace(cap=cap), mu

    @invariant()
    def the_cap_is_between_what_keeps_the_trainer_busy_and_the_window(self):
        least = min(LEAST_BATCHES, self.bound + 1.0) * self.places
        assert least <= self.pace.cap <= (self.bound + 1) * self.places

    @invariant()
    def mu_is_between_0_and_what_the_user_gave(self):
        assert 0 <= self.mu <= max(self.most, 0)

    @invariant()
    def waits_are_shares_and_periods_were_seen(self):
        assert 0 <= self.pace.starved <= 1 + 1e-9
        assert 0 <= self.pace.late <= 1 + 1e-9
        assert len(self.pace.periods) <= self.bound + 1
        assert (self.pace.period_s or 0) <= self.longest * (1 + 1e-9)

    @invariant()
    def a_batch_is_held_for_less_than_the_longest_step(self):
        assert 0 <= hold_s(self.pace, evenness=0.99, window=self.bound + 1) <= self.longest


TestPaced = Paced.TestCase


@given(starved=st.floats(0.2, 1), steps=st.integers(30, 60))
def test_a_wait_that_is_over_is_forgotten(starved, steps):
    pace = after_step(Pace(8.0), period_s=1.0, starved_s=starved, late_s=0.0, window=2)
    for _ in range(steps):
        pace = after_step(pace, period_s=1.0, starved_s=0.0, late_s=0.0, window=2)
    assert pace.starved < 0.001
