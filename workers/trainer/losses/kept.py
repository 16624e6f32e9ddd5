"""Turns the kept sets of response tokens into masks over logits (top-k, top-p and similar cuts).

Shapes: N response tokens of a row, n those of a part of it, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import torch

from protocol.kept_sets import BITS, WORD_BITS, word_counts


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """The sets that response tokens of a row were drawn from, encoded as in protocol/kept_sets.py."""

    codes_N: np.ndarray  # int32
    words: np.ndarray  # int32, of all codes in order
    starts_N: np.ndarray  # first word of each code; the last entry is the end

    @classmethod
    def of(cls, codes_N: np.ndarray, words: np.ndarray) -> "KeptTokens | None":
        """The kept tokens; None if nothing was cut off."""
        starts_N = np.concatenate([[0], np.cumsum(word_counts(codes_N))])
        return cls(codes_N, words, starts_N) if codes_N.any() else None

    def cut_off(self, part: slice, vocabulary: int, device: torch.device) -> torch.Tensor:
        """Whether each vocabulary entry could not be drawn, for the tokens of this part: bool [n, V]."""
        codes_n = self.codes_N[part]
        counts_n = word_counts(codes_n)
        words = self.words[self.starts_N[part.start] : self.starts_N[part.start + len(codes_n)]]
        rows, is_bits = np.repeat(np.arange(len(codes_n)), counts_n), np.repeat(codes_n >= BITS, counts_n)
        listed, bits = self._places(rows[~is_bits], words[~is_bits], vocabulary), np.flatnonzero(is_bits)
        flags = np.unpackbits(words[bits].astype("<i4").view(np.uint8), bitorder="little")
        place = (bits - np.repeat(np.cumsum(counts_n) - counts_n, counts_n)[bits]) * WORD_BITS
        ids = (place[:, None] + np.arange(WORD_BITS)).reshape(-1)[flags == 1]
        set_bits = self._places(np.repeat(rows[bits], WORD_BITS)[flags == 1], ids, vocabulary)

        def on_device(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(device)

        is_cut_nV = on_device(codes_n > 0)[:, None].repeat(1, vocabulary)
        flat = is_cut_nV.view(-1)
        is_named = codes_n[listed // vocabulary] > 0 if len(listed) else np.zeros(0, dtype=bool)
        flat[on_device(listed[is_named])] = False
        flat[on_device(listed[~is_named])] = True
        flat[on_device(set_bits)] = False
        return is_cut_nV

    @staticmethod
    def _places(rows: np.ndarray, ids: np.ndarray, vocabulary: int) -> np.ndarray:
        """Indices of these ids in the flat mask, without ids outside the model's vocabulary."""
        is_known = ids < vocabulary
        return rows[is_known] * vocabulary + ids[is_known].astype(np.int64)
