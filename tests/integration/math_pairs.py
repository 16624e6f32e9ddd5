"""Gold answers and responses for the reward `math`, made from a seed, and strings made to hang it."""

import random

FRAMES = (
    "So the answer is \\boxed{{{}}}.",
    "Adding up.\nThe final answer is: {}",
    "#### {}",
    "$${}$$",
    "We get\n$x = {}$",
    "<think>perhaps \\boxed{{7}}</think>\\boxed{{{}}}",
    "**Answer:** ${}$",
    "{}",
)


def pairs(count: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """(gold, response): numbers, fractions, roots, tuples, polynomials; half are wrong or unreadable."""
    rng = random.Random(seed)
    return [_pair(rng) for _ in range(count)]


def _pair(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randint(2, 99), rng.randint(2, 9)
    gold, right, wrong = rng.choice(
        [
            (str(a), f"{a}.0", str(a + 1)),
            (f"\\frac{{{a}}}{{{b}}}", f"\\frac{{{2 * a}}}{{{2 * b}}}", f"\\frac{{{b}}}{{{a}}}"),
            (f"{a / b:.4f}", f"{a / b:.4f}", f"{a}"),
            (f"\\sqrt{{{a}}}", f"\\sqrt{{{4 * a}}}/2", f"{a}"),
            (f"({a}, {b})", f"({a},{b})", f"({b}, {a})"),
            (f"(x+{b})^2", f"x^2+{2 * b}x+{b * b}", f"x^2+{b}"),
            (f"{a},{b:03d}", f"{a}{b:03d}", f"{a}"),
            (f"{a}\\%", f"{a}%", f"{b}"),
        ]
    )
    return gold, rng.choice(FRAMES).format(rng.choice([right, wrong, gold, "?"]))


def hostile(count: int, *, seed: int = 0) -> list[str]:
    """Responses that nest, repeat, grow or lie."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        size, digit = rng.choice([50, 500, 5000]), rng.randint(2, 9)
        shapes = [
            f"\\boxed{{{digit}^{{{digit}^{{{digit}^{{{digit}^{{{digit}}}}}}}}}}}",
            f"\\boxed{{{'(' * size}1{')' * size}}}",
            "\\boxed{" * size,
            f"\\boxed{{{'{' * size}}}",
            f"\\boxed{{{size * 10**6}!}}",
            "\\boxed{" + "\\frac{1}{" * (size // 5) + "2" + "}" * (size // 5) + "}",
            "the answer is " * size,
            f"${'x+' * size}1$",
            f"\\boxed{{\\sum_{{n=1}}^{{10^{{{size}}}}} \\frac{{1}}{{n^{digit}}}}}",
            f"\\boxed{{\\int_0^1 x^{{x^{{x^{digit}}}}} dx}}",
            "".join(chr(rng.randint(1, 0x2FFF)) for _ in range(size)),
            f"\\boxed{{{'9' * size}^{{{'9' * 20}}}}}",
            f"\\boxed{{{'1,' * (size // 5)}1}}",
            f"\\boxed{{\\sqrt[{digit}]{{{'7' * size}}}}}",
        ]
        made.append(shapes[number % len(shapes)])
    return made
