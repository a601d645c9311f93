"""Bugs to plant in what is known of real numbers, and of the axes of a broadcast."""

OF_NUMBERS = [
    ("narrowing", "if not narrows(tensor.dtype, after):", "if True:", "bytes_by_place"),
    ("narrowing", "if found.nan and after not in _NAN_IS_ZERO:", "if False:", "signed_bytes_of_what_is_no_number"),
    ("narrowing", "found.high < most + 1", "found.high <= most + 1", "bytes_up_to_256"),
    ("narrowing", "least - 1 < found.low", "least - 1 <= found.low", "bytes_down_to_minus_one"),
    ("reals", "if meet or any(", "if any(", "signed_bytes_of_infinity_less_itself"),
    (
        "reals",
        "not same(self.source(frame, inputs[0]), place)",
        "False",
        "signed_bytes_where_another_is_a_number",
    ),
    ("real_numbers", 'one.nan and "nan" not in which', "False", "signed_bytes_where_it_is_no_number"),
    (
        "reals",
        "low, high = float(kind(one.low)), float(kind(one.high))",
        "low, high = one.low, one.high",
        "bytes_of_rounded_halves",
    ),
    (
        "reals",
        "for one, other in ((a, b), (b, a))) or not",
        "for one, other in ((a, b), (b, a))):\n        return Reals(nan=False)\n    if not",
        "signed_bytes_of_infinity_times_zero",
    ),
    (
        "reals",
        "    inverse =",
        "    if not (a.finite or b.finite):\n        return Reals(nan=False)\n    inverse =",
        "signed_bytes_of_infinity_over_itself",
    ),
    ("reals", "return Reals(0.0, by.high, ", "return Reals(0.0, by.high * (1 - 1e-9), ", "bytes_of_remainders"),
    (
        "reals",
        'frozenset(["inf" if side.op.type == "Greater" else "-inf"])',
        'frozenset(["inf", "-inf"])',
        "signed_bytes_without_one_infinity",
    ),
    (
        "arrays",
        'if any(one.name == tensor.name for one in getattr(tensor.graph, "outputs", ())):',
        "if False:",
        "axes_that_a_function_gives_back",
    ),
]
"""Module, text, what it is replaced with, what is proved then."""
