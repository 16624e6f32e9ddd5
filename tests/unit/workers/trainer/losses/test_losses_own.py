"""A loss of the user's is tried before a run, and its mistakes are blamed on its file and line."""

import re
from dataclasses import replace

import pytest
import torch

from protocol.errors import ConfigError, PluginError
from protocol.settings import TrainerSettings
from workers.trainer.losses import policy_loss
from workers.trainer.losses.own import _made_up, answer, backward, load_loss

CPU = torch.device("cpu")
GOOD = "return -tokens.logprobs * tokens.advantages"


def load(tmp_path, body: str, name: str = "mine.py", **settings):
    file = tmp_path / name
    file.write_text(f"import torch\n\n\ndef loss(tokens):\n    {body}\n")
    return load_loss(f"{file}:loss", TrainerSettings.model_validate(settings), CPU)


@pytest.mark.parametrize("body", [GOOD, "return -tokens.logprobs, tokens.advantages > 0"])
def test_a_loss_that_keeps_its_promise_is_used_as_it_is(tmp_path, body):
    tokens = _made_up(TrainerSettings(), CPU)
    result = load(tmp_path, body)(tokens)
    loss_N = result[0] if isinstance(result, tuple) else result
    assert loss_N.shape == (7,)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "return tokens.logprobs.sum()",
            r"line 4\) returned a tensor of shape \[\]\. It was given 7 response tokens",
        ),
        ("return None", r"line 4\) returned None"),
        ("return tokens.logprob", r"line 5\) raised AttributeError: .*logprob"),
        (
            "return tokens.logprobs[:3] + tokens.advantages",
            r"line 5\) raised RuntimeError: The size of tensor",
        ),
        ("return tokens.logprobs, tokens.advantages, 3", r"line 4\) returned \(tensor"),
        (
            "return tokens.logprobs.detach()",
            r"line 4\) returned a loss that does not depend on `tokens.logprobs`",
        ),
        ("return -tokens.reference_logprobs", r"line 5\) raised TypeError"),
        (
            "return -tokens.logprobs, tokens.logprobs.exp()",
            r"line 4\) returned a second tensor of torch\.float32",
        ),
        (
            "tokens.token_weights.zero_(); return -tokens.logprobs",
            r"line 4\) has changed `tokens\.token_weights` in place",
        ),
        (
            "tokens.advantages.mul_(2); return -tokens.logprobs * tokens.advantages",
            r"line 4\) has changed `tokens\.advantages` in place",
        ),
        ("raise SystemExit('enough')", r"line 5\) raised SystemExit: enough"),
        (r"raise ValueError('many\n  lines\n')", r"line 5\) raised ValueError: many lines\. It was given"),
    ],
)
def test_a_mistake_is_told_before_the_run(tmp_path, body, words):
    with pytest.raises(ConfigError, match=r"trainer\.loss: loss \(.*mine\.py, " + words) as raised:
        load(tmp_path, body)
    assert "xpected a tensor with one number per token" in str(raised.value)


def test_a_class_and_what_is_no_function_are_refused(tmp_path):
    (tmp_path / "mine.py").write_text("class loss:\n    def __call__(self, tokens): ...\n\n\nnumber = 3\n")
    with pytest.raises(ConfigError, match=r"loss \(.*mine\.py, line 1\) is a class.*`loss = loss\(\)`"):
        load_loss(f"{tmp_path}/mine.py:loss", TrainerSettings(), CPU)
    with pytest.raises(ConfigError, match=r"trainer\.loss is 3; expected a function"):
        load_loss(f"{tmp_path}/mine.py:number", TrainerSettings(), CPU)


def test_a_mistake_that_shows_later_ends_the_run_with_its_place(tmp_path):
    loss = load(tmp_path, f"return tokens.nothing if len(tokens.logprobs) > 7 else {GOOD[7:]}", "later.py")
    tokens = _made_up(TrainerSettings(), CPU)
    more = {name: torch.cat([getattr(tokens, name)] * 2) for name in ("logprobs", "advantages", "sequences")}
    others = {name: getattr(tokens, name) for name in tokens.__slots__ if name not in more}
    with pytest.raises(PluginError, match=re.escape("later.py, line 5) raised AttributeError")):
        loss(type(tokens)(**more, **others))


def test_a_row_for_which_the_loss_is_a_constant_has_a_gradient_of_0(tmp_path):
    body = f"return tokens.advantages * 0 if tokens.advantages.max() > 5 else {GOOD[7:]}"
    loss = load(tmp_path, body, "constant.py")
    tokens = _made_up(TrainerSettings(), CPU)
    lost_N = tokens.logprobs.detach().clone()
    lost_N[2] = -torch.inf
    lost_N.requires_grad_()
    result = loss(replace(tokens, logprobs=lost_N, advantages=tokens.advantages + 5))
    assert result.tolist() == [0.0] * 7
    result.sum().backward()
    assert lost_N.grad is not None
    assert lost_N.grad.tolist() == [0.0] * 7
    assert torch.equal(loss(tokens), -tokens.logprobs * tokens.advantages)


def test_a_row_without_tokens_is_not_given_to_the_loss(tmp_path):
    loss = load(tmp_path, "return -tokens.logprobs * tokens.advantages / tokens.advantages.max()", "max.py")
    tokens = _made_up(TrainerSettings(), CPU)
    parts = {name: getattr(tokens, name) for name in tokens.__slots__}
    none = {name: part[:0] for name, part in parts.items() if isinstance(part, torch.Tensor)}
    found = policy_loss(type(tokens)(**{**parts, **none}), loss)
    assert found.loss.item() == 0.0
    found.loss.backward()
    assert tokens.logprobs.grad is not None
    assert tokens.logprobs.grad.tolist() == [0.0] * 7


def test_the_reference_is_there_if_the_settings_say_so(tmp_path):
    load(tmp_path, "return tokens.logprobs - tokens.reference_logprobs", "kl.py", kl_coefficient=0.1)


def test_check_is_answered_without_an_exception(tmp_path):
    (tmp_path / "mine.py").write_text("def loss(tokens): return 1\n")
    question = {"name": f"{tmp_path}/mine.py:loss", "settings": TrainerSettings().model_dump_json()}
    [(level, text)] = answer(question)
    assert level == "error"
    assert text.startswith("loss (")
    assert answer(question | {"name": "gspo"}) == []


RAISING = """
import torch


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logprobs):
        return -logprobs

    @staticmethod
    def backward(ctx, gradient):
        if len(gradient) > {most}:
            raise {error}
        return -gradient


def loss(tokens):
    return Scaled.apply(tokens.logprobs)
"""


def raising(tmp_path, error: str, most: int = 7):
    """A loss whose gradient raises for more than so many tokens, and nine tokens that a model has made."""
    file = tmp_path / f"raising_{most}.py"
    file.write_text(RAISING.format(error=error, most=most))
    tokens = _made_up(TrainerSettings(), CPU)
    made_N = torch.zeros(9, requires_grad=True) * 2
    return f"{file}:loss", replace(tokens, logprobs=made_N)


@pytest.mark.parametrize("error", ["KeyError('k')", "RuntimeError('no such thing')"])
def test_a_gradient_that_raises_later_is_blamed_on_the_function(tmp_path, error):
    name, tokens = raising(tmp_path, error)
    loss = load_loss(name, TrainerSettings(), CPU)
    with pytest.raises(
        PluginError, match=r"gradient of what loss \(.*line 13\) returned raised .*(Key|Runt)"
    ):
        backward(loss(tokens).sum(), loss, tokens)


def test_a_gradient_that_raises_is_told_before_the_run(tmp_path):
    name, _ = raising(tmp_path, "KeyError('k')", most=0)
    with pytest.raises(
        ConfigError, match=r"gradient of what loss \(.*line 13\) returned raised KeyError: 'k'"
    ):
        load_loss(name, TrainerSettings(), CPU)


def test_memory_that_ran_out_is_not_the_function_s(tmp_path):
    name, tokens = raising(tmp_path, "torch.OutOfMemoryError('CUDA out of memory')")
    loss = load_loss(name, TrainerSettings(), CPU)
    with pytest.raises(torch.OutOfMemoryError):
        backward(loss(tokens).sum(), loss, tokens)


def test_memory_that_ran_out_in_the_function_is_not_its_mistake_and_another_try_may_work(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\ndef loss(tokens):\n    if len(tokens.logprobs) > 7:\n"
        "        raise torch.OutOfMemoryError('CUDA out of memory')\n    return -tokens.logprobs\n"
    )
    name, tokens = f"{tmp_path / 'mine.py'}:loss", raising(tmp_path, "KeyError('k')")[1]
    with pytest.raises(torch.OutOfMemoryError):
        load_loss(name, TrainerSettings(), CPU)(tokens)


def test_what_the_model_raises_is_not_the_function_s(tmp_path):
    def broken(gradient):
        raise ValueError("of the model")

    name, tokens = raising(tmp_path, "KeyError('k')", most=9)
    loss = load_loss(name, TrainerSettings(), CPU)
    weights = torch.zeros(9, requires_grad=True)
    model = weights * 2
    model.register_hook(broken)
    tokens = replace(tokens, logprobs=model * 2)
    with pytest.raises(ValueError, match="of the model"):
        backward(loss(tokens).sum(), loss, tokens)
