"""How gradients travel as float16: each tensor at a scale that all ranks know, so that finite sums stay finite.

float16 holds numbers from 6e-8 to 65504, and gradients are often smaller, sometimes larger. So the ranks first sum
their largest magnitude of each tensor, one number per tensor, and every rank multiplies by::

    scale = 2 ^ min(SUM_EXPONENT - ceil(log2(sum over ranks of max |g|)), MAX_EXPONENT)

The sum bounds every partial sum in any order, so with the scale none exceeds ``2 ^ SUM_EXPONENT``. A power of two
rounds nothing: what is left is float16's rounding, 11 bits of each element down to ``2 ^ -28`` of the bound. The scale
is made of the step's own gradients, as mixed-precision training scales its loss (Micikevicius et al. 2018,
arXiv:1710.03740), but needs no history, so a resumed run goes on exactly. A gradient that is not finite stays so.
"""

from __future__ import annotations

#: Bound of scaled sums, as a power of two: a quarter of float16's largest number, so that the sum's own roundings, at
#: most ``1 + 2^-11`` for each rank, stay in range up to 2,800 ranks even if all of them round up.
SUM_EXPONENT = 14.0

#: Largest scale, as a power of two, so that float32 holds it; gradients below ``2 ^ -86`` lose bits.
MAX_EXPONENT = 100.0
