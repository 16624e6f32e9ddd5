"""Coefficients of five engines that were published with the StaleFlow release."""

from strategies.cost_model import QWEN_7B_TP1, Coefficients

PUBLISHED: dict[str, Coefficients] = {
    "7b-tp1": QWEN_7B_TP1,
    "7b-tp2": Coefficients(0.0073, 0.0053, 8.5e-5, 0.0007, 1.8789e-8, 0.0053, 8.5e-5, 8.2e-10),
    "14b-tp1": Coefficients(
        0.012303, 0.0049075, 2.441e-4, 0.0019664, 1.165e-7, 0.0049075, 2.441e-4, 4.0e-9
    ),
    "32b-tp2": Coefficients(
        0.0250194, 0.0183826, 2.446e-4, 2e-10, 6.3e-8, 0.0183826, 2.446e-4, 2.66e-9
    ),
    "30b-a3b-tp1": Coefficients(
        0.0115108, 0.0097899, 1.249e-4, 0.00086719, 7.28e-8, 0.0097899, 1.249e-4, 3.2e-9
    ),
}  # fmt: skip
"""Decode rows as published. Prefill is ours: a prefilled token costs the same matrix products as a decoded
one (other_b, other_k); the square is causal attention, 2 x layers x attention width FLOP at 123 TFLOPS."""
