"""Runs any Hugging Face causal language model over the rows of a KvRows cache.

Invariants: every mask and position is explicit, so a row's result does not depend on its neighbours or on
padding; sequences of a model whose layers have states are never padded; a model that cannot be run this way
(positions derived from the mask, layers of other kinds) is refused when it is loaded.

Shapes: B sequences, T tokens of one pass, L attended positions, V vocabulary.
"""

import inspect

import torch
from transformers import PreTrainedModel

from protocol.errors import ConfigError
from protocol.model_shape import too_long
from workers.engines.torch.cache import Computed, KvRows
from workers.engines.torch.states import STATE_LAYERS
from workers.models.small_copy import SmallCopy, difference, in_words, passed_spans, small_copy

ATTENDED_MULTIPLE = 16  # attended lengths are rounded up to it, so that kernels and allocations repeat
SMALL_TOLERANCE = 1e-4  # of logits in float32, as a share of the largest
MASK_LAYERS = ("full_attention", "sliding_attention")
CACHE_NAMES = ("past_key_values", "cache")
PASS_TOKENS = 128  # a separate pass costs about as much as this much padding (124k parameters on one core)
Masks = torch.Tensor | dict[str, torch.Tensor]
"""Additive, [B or 1, 1, T, L]: one mask, or one per type of layer in a model with several."""


class Forward:
    """The model with its cache: `prefill` and `extend` compute keys and values, `decode` also logits."""

    def __init__(self, model: PreTrainedModel, *, max_rows: int, max_length: int) -> None:
        """Raises: ConfigError if the model cannot be run with a cache of rows."""
        self.model = model
        self._max_length = max_length
        config = model.config.get_text_config(decoder=True)
        layer_types = getattr(config, "layer_types", None)
        self._layer_types = set(layer_types or ["full_attention"])
        known = MASK_LAYERS + STATE_LAYERS
        if surplus := sorted(self._layer_types.difference(known)):
            raise _refusal(model, f"has layers of type {', '.join(surplus)}, not {' or '.join(known)}")
        self.cache = self.empty_cache(max_rows, max_length)
        if "position_ids" not in inspect.signature(model.forward).parameters:
            raise _refusal(model, "takes no position_ids")
        self._cache_name = _cache_name(type(model))
        # a model that does not say which layers have its window has it in all of them
        has_window = "sliding_attention" in self._layer_types or not layer_types
        has_window = has_window and getattr(config, "use_sliding_window", True)
        self._window: int | None = getattr(config, "sliding_window", None) if has_window else None
        if next(model.parameters()).untyped_storage().nbytes():
            self.check_decoding()

    @property
    def has_states(self) -> bool:
        """Whether rows hold states besides keys and values, which can be extended but never cut back."""
        return self.cache.states.is_needed

    @property
    def most_padding(self) -> int:
        """Tokens of padding that a pass over several sequences may have."""
        return 0 if self.has_states else PASS_TOKENS

    def empty_cache(self, max_rows: int, max_length: int) -> KvRows:
        """An empty cache for this model."""
        config = self.model.config.get_text_config(decoder=True)
        kinds = getattr(config, "layer_types", None) or ()
        per_layer = getattr(config, "number_of_conv_states", 1)
        return KvRows(max_rows=max_rows, max_length=max_length, kinds=kinds, per_layer=per_layer)

    def check_decoding(self) -> None:
        """Compare decoding with a plain pass; for a model without weights, call it once they are there.

        Raises: ConfigError if they differ.
        """
        expected = _check_states if self.has_states else _check_decoding
        expected(self.model, self)

    @torch.inference_mode()
    def prefill(self, tokens_BT: torch.Tensor) -> Computed:
        """The layers' content after these sequences.

        Keys and values of padding at a sequence's end are undefined; models with states get no padding.
        """
        count, length = tokens_BT.shape
        positions_BT = torch.arange(length, device=tokens_BT.device).expand(count, length)
        self.cache.begin_prefill()
        self._call(tokens_BT, positions_BT, self._masks(positions_BT[:1], length))
        return self.cache.end_prefill()

    @torch.inference_mode()
    def decode(self, tokens_B: torch.Tensor, positions_B: torch.Tensor, *, longest: int) -> torch.Tensor:
        """Logits [B, V] after these tokens of rows 0 to B, at these positions; `longest` is the largest."""
        attended = self._rounded(longest + 1)
        self.cache.begin_decode(positions_B, attended=attended)
        positions_B1 = positions_B[:, None]
        logits_B1V = self._call(tokens_B[:, None], positions_B1, self._masks(positions_B1, attended))
        self.cache.end()
        return logits_B1V[:, -1]

    @torch.inference_mode()
    def extend(self, tokens_BT: torch.Tensor, starts: list[int], rows: list[int]) -> None:
        """Write keys and values of these tokens into rows, each from its start on, after the row's content.

        Those of padding at a sequence's end are undefined; models with states get no padding, and a start is
        where the row ends. `start + T` is within the longest length.
        """
        length = tokens_BT.shape[1]
        starts_B = torch.tensor(starts, device=tokens_BT.device)
        positions_BT = starts_B[:, None] + torch.arange(length, device=tokens_BT.device)
        attended = self._rounded(max(starts) + length)
        self.cache.begin_extend(rows, positions_BT, attended=attended)
        self._call(tokens_BT, positions_BT, self._masks(positions_BT, attended))
        self.cache.end()

    def _rounded(self, length: int) -> int:
        return min(self._max_length, -(-length // ATTENDED_MULTIPLE) * ATTENDED_MULTIPLE)

    def _call(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, masks: Masks) -> torch.Tensor:
        return self.model(
            input_ids=tokens_BT,
            attention_mask=masks,
            position_ids=positions_BT,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: self.cache},
        ).logits

    def _masks(self, positions_BT: torch.Tensor, attended: int) -> Masks:
        keys_L = torch.arange(attended, device=positions_BT.device)
        distance_BTL = positions_BT[:, :, None] - keys_L
        full = self._additive(distance_BTL < 0)
        if self._window is None:
            return full
        sliding = self._additive((distance_BTL < 0) | (distance_BTL >= self._window))
        is_mixed = "sliding_attention" in self._layer_types
        return {"full_attention": full, "sliding_attention": sliding} if is_mixed else sliding

    def _additive(self, is_hidden_BTL: torch.Tensor) -> torch.Tensor:
        dtype = self.model.dtype
        zeros_BTL = torch.zeros(is_hidden_BTL.shape, dtype=dtype, device=is_hidden_BTL.device)
        return zeros_BTL.masked_fill_(is_hidden_BTL, torch.finfo(dtype).min)[:, None]


def _cache_name(kind: type) -> str:
    """The argument in which models of this class take their cache, which transformers 5.24 has renamed."""
    for one in kind.__mro__:  # that of a model of the user may pass it on without naming it
        names = inspect.signature(one.__dict__["forward"]).parameters if "forward" in one.__dict__ else ()
        if found := [name for name in CACHE_NAMES if name in names]:
            return found[0]
    return CACHE_NAMES[0]


@torch.inference_mode()
def _check_decoding(model: PreTrainedModel, forward: Forward) -> None:
    """Compare decoding of rows of unequal length with a plain pass. Raises: ConfigError if they differ."""
    tokens_BT, expected_BTV = _plain_pass(model, 4)
    cache, forward.cache = forward.cache, forward.empty_cache(2, 16)
    prefilled = forward.prefill(tokens_BT[:, :-1])
    forward.cache.install(prefilled, [(0, 0), (1, 1)], length=3)
    positions_B = torch.tensor([3, 1], device=model.device)
    rows_B = torch.arange(2, device=model.device)
    logits_BV = forward.decode(tokens_BT[rows_B, positions_B], positions_B, longest=3).float()
    wanted_BV = expected_BTV[rows_B, positions_B]
    error, spread = (logits_BV - wanted_BV).abs().max().item(), wanted_BV.std().item()
    forward.extend(tokens_BT[1:, 1:3], [1], [1])  # and with tokens put behind the first one
    logits_BV = forward.decode(tokens_BT[rows_B, 3], torch.full_like(rows_B, 3), longest=3).float()
    error = max(error, (logits_BV - expected_BTV[:, 3]).abs().max().item())
    forward.cache = cache
    _refuse_beyond(model, error, spread)


@torch.inference_mode()
def _check_states(model: PreTrainedModel, forward: Forward) -> None:
    """`_check_decoding` for a model whose rows cannot be cut back. Raises: ConfigError if they differ."""
    tokens_BT, expected_BTV = _plain_pass(model, 8)
    cache, forward.cache = forward.cache, forward.empty_cache(2, 16)
    rows_B = torch.arange(2, device=model.device)
    for row, length in ((0, 5), (1, 1)):
        prefilled = forward.prefill(tokens_BT[row : row + 1, :length])
        forward.cache.install(prefilled, [(0, row)], length=length)
    gaps = []
    for positions in ((5, 1), (6, 6), (7, 7)):
        positions_B = torch.tensor(positions, device=model.device)
        logits_BV = forward.decode(tokens_BT[rows_B, positions_B], positions_B, longest=positions[0])
        gaps.append((logits_BV.float() - expected_BTV[rows_B, positions_B]).abs().max().item())
        if len(gaps) == 1:  # four tokens behind the two that the row holds
            forward.extend(tokens_BT[1:, 2:6], [2], [1])
    forward.cache = cache
    _refuse_beyond(model, max(gaps), expected_BTV.std().item())


def _plain_pass(model: PreTrainedModel, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sequences of this length, [B, T], and their logits [B, T, V] without a cache."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    tokens_BT = torch.arange(1, 2 * length + 1, device=model.device).view(2, length) % vocabulary
    return tokens_BT, model(input_ids=tokens_BT, use_cache=False).logits.float()


def _refuse_beyond(model: PreTrainedModel, error: float, spread: float) -> None:
    """Raises: ConfigError if logits differ by more than rounding."""
    if not error <= (0.01 if model.dtype == torch.float32 else 0.3) * spread + 1e-6:
        raise _refusal(
            model,
            f"gives logits that differ by {error:.3g}, of a spread of {spread:.3g}, between decoding with a "
            "cache and a plain pass",
        )


def check_lengths(model: PreTrainedModel, *, longest: int) -> None:
    """Compare decoding beyond the model's windows with plain passes, in a small copy of it.

    `longest`: tokens of a sequence of this run. Raises: ConfigError if they differ, or are known to differ.
    """
    if problem := too_long(model.config.to_dict(), longest):
        raise ConfigError(problem)
    if not (passed := passed_spans(model.config, longest=longest)):
        return
    small = small_copy(model.config, passed, device=model.device, dtype=torch.float32)
    gap = difference(*_decoded(small))
    if not gap <= SMALL_TOLERANCE:
        raise _refusal(
            model,
            f"has {in_words(passed)}, and a small model like it, with sequences beyond that, gives logits "
            f"that differ by {gap:.3g} of their size between decoding with a cache and a plain pass",
        )


@torch.inference_mode()
def _decoded(small: SmallCopy) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Logits of the second half of each sequence, decoded side by side; and those of plain passes."""
    order = sorted(range(len(small.sequences)), key=lambda index: -len(small.sequences[index]))
    sequences, plain = ([of[index] for index in order] for of in (small.sequences, small.logits))
    halves = [len(tokens_T) // 2 for tokens_T in sequences]
    forward = Forward(small.model, max_rows=len(sequences), max_length=len(sequences[0]))
    heads = [tokens_T[:half] for tokens_T, half in zip(sequences, halves, strict=True)]
    if forward.has_states:
        for row, head_T in enumerate(heads):
            forward.cache.install(forward.prefill(head_T[None]), [(0, row)], length=len(head_T))
    else:
        computed = forward.prefill(torch.nn.utils.rnn.pad_sequence(heads, batch_first=True))
        forward.cache.install(computed, [(row, row) for row in range(len(heads))], length=halves[0])
    found, wanted = [], []
    for step in range(len(sequences[0]) - halves[0]):
        places = [half + step for half, tokens_T in zip(halves, sequences, strict=True)]
        running = sum(place < len(tokens_T) for place, tokens_T in zip(places, sequences, strict=True))
        rows = list(zip(places[:running], sequences, plain, strict=False))  # the longest come first
        tokens_B = torch.stack([tokens_T[place] for place, tokens_T, _ in rows])
        positions_B = torch.tensor(places[:running], device=tokens_B.device)
        found.append(forward.decode(tokens_B, positions_B, longest=places[0]))
        wanted.append(torch.stack([logits_TV[place] for place, _, logits_TV in rows]))
    return found, wanted


def _refusal(model: PreTrainedModel, reason: str) -> ConfigError:
    return ConfigError(
        f"{type(model).__name__} {reason}; the embedded engine cannot run it. Expected a decoder with "
        "attention over explicit positions. Choose another model, or another `rollout.engine`."
    )
