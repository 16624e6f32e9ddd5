"""Trainers come, make versions, save and die: each gets the batches in order, and none needed is lost."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core.commands import DropPayload, Send
from controller.core.decisions.training.trainer_batches import TrainerBatches
from controller.core.state.batches.contributions import Batch
from controller.core.state.run_state import RunState
from protocol.messages import Train


class Trained(RuleBasedStateMachine):
    """A run of batches of one group, whose trainer holds what its newest checkpoint holds."""

    @initialize(keep=st.integers(1, 4))
    def begin(self, keep):
        config = Config.model_validate({"trainer": {"keep_checkpoints": keep}, "samples": {"groups": 0}})
        self.state = RunState(config, load_strategies(config))
        self.batches, self.keep = TrainerBatches(self.state), keep
        self.held: int | None = None  # of the trainer that is there
        self.asked: int | None = None  # train_version of the batch that it works on
        self.saved: list[int] = []  # its checkpoints, oldest first
        self.may_begin_again = True  # without a checkpoint, from version 0
        self.dropped: set[int] = set()

    def ways_back(self):
        """Versions from which a trainer may have to go on."""
        return [*[0] * self.may_begin_again, *self.saved]

    def look(self):
        """What was said since the last look."""
        for command in self.state.take_commands():
            if isinstance(command, DropPayload):
                self.dropped |= set(command.groups)
            elif isinstance(command, Send) and isinstance(command.message, Train):
                assert self.asked is None, "it has one in hand"
                self.asked = command.message.train_version
                assert self.asked == self.held, f"batch {self.asked} for a trainer at {self.held}"
                assert self.asked not in self.dropped, "its payload is gone"

    @precondition(lambda self: self.held is None)
    @rule(data=st.data())
    def attach(self, data):
        self.held = data.draw(st.sampled_from(self.ways_back()))
        self.saved = [version for version in self.saved if version <= self.held]
        self.batches.attach("trainer", self.held)
        self.look()
        assert self.state.ending is None, "it came from a checkpoint that is kept"

    @precondition(lambda self: self.held is not None)
    @rule()
    def die(self):
        self.batches.lose()
        self.held = self.asked = None

    @precondition(lambda self: self.held is not None and self.held == self.state.steps and self.asked is None)
    @rule()
    def consume(self):
        version = self.state.steps
        self.batches.add(Batch(version, (version,), ()), "trainer")
        self.look()
        assert self.asked == version

    @precondition(lambda self: self.asked is not None)
    @rule()
    def finish(self):
        assert not self.batches.finish(self.asked + 2), "nobody asked for that"
        assert self.batches.finish(self.asked + 1)
        self.held, self.asked = self.asked + 1, None
        if self.held > self.state.steps:
            self.state.steps = self.held
        else:
            self.batches.go_on("trainer")
        self.look()

    @precondition(lambda self: self.asked is None and self.held == self.state.steps > 0)
    @precondition(lambda self: self.held not in self.saved)
    @rule()
    def save(self):
        self.saved = [*self.saved, self.held][-self.keep :]
        self.may_begin_again &= len(self.saved) < self.keep
        self.batches.cover(self.held)
        self.look()

    @invariant()
    @precondition(lambda self: hasattr(self, "state"))
    def a_way_on_leads_from_every_checkpoint_that_is_kept(self):
        for begin in self.ways_back():
            assert not self.dropped & set(range(begin, self.state.steps)), f"{self.dropped}, from {begin} on"

    @invariant()
    @precondition(lambda self: hasattr(self, "state"))
    def the_trainer_is_busy_with_what_it_was_asked_for(self):
        assert self.batches.making == (None if self.asked is None else self.asked + 1)
        assert self.batches.is_behind == (self.held is not None and self.held < self.state.steps)


TestTrained = Trained.TestCase
TestTrained.settings = settings(max_examples=40, stateful_step_count=40)
