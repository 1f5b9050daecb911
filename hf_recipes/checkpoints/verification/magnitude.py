"""The largest absolute value in a run of bytes, NaN if any value is NaN, at the speed of memory and without torch.

Floats are sign and magnitude: as integers without the sign bit they keep their order, Inf above all numbers and NaN
above Inf. So one signed and one unsigned integer maximum find the answer, with no temporary array.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# A complex number is two floats, of which each is looked at.
_FLOAT_BITS = {"F8_E4M3": 8, "F8_E5M2": 8, "F16": 16, "BF16": 16, "F32": 32, "C64": 32, "F64": 64}
_ONE_NAN = {"F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 16}  # by exponent bias: no Inf, and NaN where others have minus zero
_INTEGERS = {"BOOL": "u1", "U8": "u1", "I8": "i1", "U16": "u2", "I16": "i2", "U32": "u4", "I32": "i4"} | {
    "U64": "u8",
    "I64": "i8",
}


def can_judge(dtype: str) -> bool:
    """Whether `abs_max` knows `dtype`. Floats of 4 and 6 bits are packed across bytes, and have neither NaN nor Inf."""
    return dtype in _FLOAT_BITS or dtype in _INTEGERS or dtype in _ONE_NAN or dtype == "F8_E8M0"


def abs_max(chunk: memoryview, dtype: str) -> float:
    """The largest absolute value of a non-empty chunk of little-endian elements of `dtype` (safetensors' name)."""
    if dtype in _FLOAT_BITS:
        return _decode(_largest_magnitude(chunk, _FLOAT_BITS[dtype]), dtype)
    if dtype in _ONE_NAN:
        return _abs_max_one_nan(chunk, dtype)
    if dtype == "F8_E8M0":  # powers of two without sign or zero; 255 is NaN
        largest = int(np.frombuffer(chunk, dtype="u1").max())
        return float("nan") if largest == 255 else 2.0 ** (largest - 127)
    integers: NDArray[np.integer] = np.frombuffer(chunk, dtype=f"<{_INTEGERS[dtype]}")
    return float(max(-int(integers.min()), int(integers.max())))


def _abs_max_one_nan(chunk: memoryview, dtype: str) -> float:
    unsigned = np.frombuffer(chunk, dtype="u1")
    if (unsigned == 0x80).any():
        return float("nan")
    return _small_float(_largest_magnitude(chunk, 8), 3 if dtype == "F8_E4M3FNUZ" else 2, _ONE_NAN[dtype])


def _largest_magnitude(chunk: memoryview, bits: int) -> int:
    unsigned = np.frombuffer(chunk, dtype=f"<u{bits // 8}")
    largest_positive = int(unsigned.view(f"<i{bits // 8}").max())
    largest_negative = int(unsigned.max()) & (1 << (bits - 1)) - 1  # negative bit patterns are the largest unsigned
    return max(largest_positive, largest_negative)


def _decode(bits: int, dtype: str) -> float:
    if dtype == "F8_E4M3":
        return float("nan") if bits == 0x7F else _small_float(bits, 3, 7)
    if dtype == "F8_E5M2":  # the upper byte of a float16
        return float(np.uint16(bits << 8).view(np.float16))
    if dtype == "BF16":  # the upper half of a float32
        return float(np.uint32(bits << 16).view(np.float32))
    width = _FLOAT_BITS[dtype]
    return float(np.array(bits, dtype=f"u{width // 8}").view(f"f{width // 8}"))


def _small_float(bits: int, fraction_bits: int, bias: int) -> float:
    """The value of an 8-bit float that is neither NaN nor Inf, from its bits without the sign."""
    exponent, fraction = bits >> fraction_bits, (bits & (1 << fraction_bits) - 1) / (1 << fraction_bits)
    return fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias)
