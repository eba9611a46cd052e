"""Names of the columns in which pieces' numbers travel from the ranks to the fingerprint. Standard library only."""

FLOATS = (
    *("grad_2", "grad_p", "zeros", "stale", "clipped_2", "update_2", "update_p"),
    *("us", "uw", "ss", "sw", "ww", "weight_2", "weight_p"),
)
"""Numbers of a piece. _2 is a sum of squares, _p a projection; u, s, w are the update, the optimizer's direction and the
weights before the update, us and so on their inner products."""
WHOLE = ("weight_2", "weight_p")
"""Numbers that every rank of a sharded optimizer has of the whole parameter, not of its own range: they don't add up."""
KINDS = ("param", "grad_buffer", "main_grad", "main_param", "exp_avg", "exp_avg_sq")
"""What the census counts by dtype."""
DTYPES = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2", "uint8", "other")
CODES = (*KINDS, "group", "unseen")
"""Small integers of a piece: 1 + its dtype's place in DTYPES for each kind, 1 + its optimizer group, and whether its update
couldn't be read. 0 is nothing."""
QUANTIZED = 1 + DTYPES.index("uint8")
"""Code of weights that are kept quantized; their values aren't read."""
