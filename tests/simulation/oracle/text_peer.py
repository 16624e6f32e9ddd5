"""A reward worker: prompts to lengths, responses to random rewards, in any order."""

from protocol import messages
from protocol.messages import Message
from tests.simulation.oracle.peer import Peer


class TextPeer(Peer):
    """Answers each question once, soon."""

    role = "reward"

    def handle(self, message: Message) -> float:
        """Both kinds are worked on side by side."""
        match message:
            case messages.Encode(groups):
                self.later(self.rng.uniform(0.01, 0.2), self._encode, self.id, groups)
            case messages.Score():
                self.later(self.rng.uniform(0.01, 0.5), self._score, self.id, message)
            case messages.Drain():
                self.say(messages.Detach("drained"))
                self.later(0.1, self.host.left, self)
            case _:
                raise AssertionError(f"a reward worker was sent {message}")
        return 0.0

    def _encode(self, id: str, groups: tuple[int, ...]) -> None:
        if id != self.id:
            return
        refused = [group for group in groups if self.host.fails("refuse")]
        taken = [group for group in groups if group not in refused]
        answer: Message
        if self.host.world.config.trainer.is_supervised:
            longest = self.host.world.config.rollout.max_response_tokens
            lengths = [(group, self.host.prompt_tokens(group), 1 + group % longest) for group in taken]
            answer = messages.ExamplesEncoded(tuple(lengths), tuple((group, "empty") for group in refused))
        else:
            known = [(group, self.host.prompt_tokens(group)) for group in taken]
            answer = messages.PromptsEncoded(tuple(known), tuple((group, "empty") for group in refused))
        self.say(answer)

    def _score(self, id: str, score: messages.Score) -> None:
        if id != self.id:
            return
        if self.host.fails("score"):
            self.say(messages.ScoreFailed(score.group, score.attempt, "it raised", "{}"))
        else:
            rewards = tuple(float(self.rng.random() < 0.5) for _ in score.items)
            self.say(messages.GroupScored(score.group, score.attempt, rewards))
