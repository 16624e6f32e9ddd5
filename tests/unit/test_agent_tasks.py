"""The tasks of the examples of agents: what they give, what they reward, and what their models begin with."""

import asyncio
import json
import random
import sys
from importlib import import_module
from itertools import islice
from types import SimpleNamespace

import pytest

from examples import calculator_task, guess_task
from workers.agent.kinds.tools import from_tools
from workers.agent.rendering.probes import probe
from workers.agent.rendering.renderer import TemplateRenderer


class Player:
    """A policy that answers as a test says, and notes the rewards of its turns."""

    saved = None

    def __init__(self, answers):
        self.answers, self.rewards, self.asked = iter(answers), [], []

    async def generate(self, token_ids, max_tokens):
        self.asked.append(list(token_ids))
        return SimpleNamespace(token_ids=[next(self.answers)], ending="length")

    async def chat(self, messages, tools=None):
        self.asked.append(messages[-1]["content"])
        answer = next(self.answers)
        if isinstance(answer, str):
            return {"role": "assistant", "content": answer}
        call = {"name": "add", "arguments": json.dumps(dict(zip("ab", answer, strict=True)))}
        return {"role": "assistant", "content": "", "tool_calls": [{"id": "aaaaaaaaa", "function": call}]}

    def reward(self, value):
        self.rewards.append(value)


def game(secret, said, **options):
    player = Player(said)
    return asyncio.run(guess_task.episode(player, {"secret": secret}, **options)), player


def halving(secret):
    low, high, guesses = 0, guess_task.NUMBERS, []
    while not guesses or guesses[-1] != secret:
        guesses.append((low + high) // 2)
        _, low, high = guess_task.judge(guesses[-1], secret, low, high)
    return guesses


def test_an_openai_agent_goes_on_after_an_answer_that_is_no_number(monkeypatch):
    monkeypatch.setitem(sys.modules, "guess_task", guess_task)  # as beside the example
    play = import_module("examples.openai_agent").play
    answers, heard = iter(["?", "= 3", "", "4", "3"]), []

    def create(*, model, messages, max_tokens):
        assert max_tokens == 1, "a guess is one token; a second one makes another text of it"
        heard.append(messages[-1]["content"])
        answer = next(answers)
        said = SimpleNamespace(content=answer, model_dump=lambda: {"role": "assistant", "content": answer})
        return SimpleNamespace(choices=[SimpleNamespace(message=said)])

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    assert play(client, 3) == 1.0
    assert heard == ["?", "?", "?", "?", "<"]


@pytest.mark.parametrize("secret", range(guess_task.NUMBERS))
def test_halving_wins_every_game(secret):
    assert game(secret, halving(secret))[0] == 1.0


def test_a_guess_earns_the_share_of_the_numbers_that_its_answer_rules_out():
    no_number = guess_task.TOKENS.index("?")
    reward, player = game(20, [15, 15, no_number, 30, 16])
    assert reward == 0.0
    assert player.rewards == pytest.approx([1 - 15 / 31, 0.0, 0.0, 1 / 15, 1 / 14])
    higher, start = guess_task.TOKENS.index(">"), guess_task.START
    assert player.asked[:2] == [start, [*start, 15, higher]]


def test_with_one_guess_a_game_is_over_after_it():
    reward, player = game(20, [15, 20], guesses=1)
    assert (reward, len(player.rewards)) == (0.0, 1)


def episode_of(prompt, answer, said, **options):
    player = Player(said)
    play = from_tools(calculator_task.Calculator, options)
    return asyncio.run(play(player, {"prompt": prompt, "answer": answer})), player


def test_a_sum_is_added_step_by_step_and_rewarded_if_the_last_answer_is_right():
    reward, player = episode_of("17+5+62", "84", [(17, 5), (22, 62), "84"])
    assert (reward, player.asked) == (1.0, ["17+5+62", "22", "84"])
    assert episode_of("17+5+62", "84", ["85"])[0] == 0.0


def test_a_calculator_that_is_off_says_so_and_adds_nothing():
    _, player = episode_of("17+5", "22", [(17, 5), "22"], is_on=False)
    assert player.asked == ["17+5", "Error: The calculator is off."]


def test_prompts_are_sums_with_a_heavy_tail_and_equal_for_equal_seeds():
    first, again, other = (list(islice(calculator_task.prompts(seed=s), 500)) for s in (1, 1, 2))
    assert first == again != other
    counts = [row["prompt"].count("+") + 1 for row in first]
    assert (min(counts), max(counts)) == (calculator_task.FEWEST, calculator_task.MOST)
    assert all(str(sum(map(int, row["prompt"].split("+"))) % 100) == row["answer"] for row in first)


def test_demonstrations_are_what_the_renderer_makes_of_right_episodes():
    tokenizer = calculator_task.make_tokenizer()
    renderer, source = TemplateRenderer(tokenizer), random.Random(5)
    for _ in range(50):
        tokens, is_sampled = calculator_task.demonstration(source)
        assert len(tokens) == len(is_sampled) <= 96  # the context of calculator.yaml
        prompt = renderer.render([{"role": "user", "content": tokenizer.decode(tokens).split("=")[0]}], None)
        assert tokens[: len(prompt)] == prompt
        assert not any(is_sampled[: len(prompt)])
        place = len(prompt)
        while True:
            end = tokens.index(tokenizer.eos_token_id, place) + 1
            assert all(is_sampled[place:end])
            said = renderer.parse(tokens[place:end])
            if not said.calls:
                break
            result = tokenizer.decode(
                tokens[end : is_sampled.index(True, end) if True in is_sampled[end:] else None]
            )
            new = [{"role": "tool", "tool_call_id": "aaaaaaaaa", "content": result.strip(">=")}]
            given = renderer.extend(tokens[end - 1], new, None)
            assert tokens[end : end + len(given)] == given
            place = end + len(given)
        assert end == len(tokens)


def test_the_template_of_the_calculator_leaves_the_past_as_it_was():
    verdicts = probe(TemplateRenderer(calculator_task.make_tokenizer()))
    assert [name for name, why in verdicts.items() if why] == ["a thinking turn"]


def test_what_a_tool_says_in_words_is_a_few_tokens():
    tokenizer = calculator_task.make_tokenizer()
    assert len(tokenizer("Error: add lacks the argument 'b'.")["input_ids"]) == 1
