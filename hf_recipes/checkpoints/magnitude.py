"""The largest absolute value in a run of bytes, NaN if any value is NaN, at the speed of memory and without torch.

Floats are sign and magnitude: as integers without the sign bit they keep their order, Inf above all numbers and NaN
above Inf. So one signed and one unsigned integer maximum find the answer, with no temporary array.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FLOAT_BITS = {"F8_E4M3": 8, "F8_E5M2": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64}
_INTEGERS = {"BOOL": "u1", "U8": "u1", "I8": "i1", "U16": "u2", "I16": "i2", "U32": "u4", "I32": "i4"} | {
    "U64": "u8",
    "I64": "i8",
}


def abs_max(chunk: memoryview, dtype: str) -> float:
    """The largest absolute value of a non-empty chunk of little-endian elements of `dtype` (safetensors' name)."""
    if dtype in _FLOAT_BITS:
        return _decode(_largest_magnitude(chunk, _FLOAT_BITS[dtype]), dtype)
    integers: NDArray[np.integer] = np.frombuffer(chunk, dtype=f"<{_INTEGERS[dtype]}")
    return float(max(-int(integers.min()), int(integers.max())))


def _largest_magnitude(chunk: memoryview, bits: int) -> int:
    unsigned = np.frombuffer(chunk, dtype=f"<u{bits // 8}")
    largest_positive = int(unsigned.view(f"<i{bits // 8}").max())
    largest_negative = int(unsigned.max()) & (1 << (bits - 1)) - 1  # negative bit patterns are the largest unsigned
    return max(largest_positive, largest_negative)


def _decode(bits: int, dtype: str) -> float:
    if dtype == "F8_E4M3":
        return _decode_e4m3(bits)
    if dtype == "F8_E5M2":  # the upper byte of a float16
        return float(np.uint16(bits << 8).view(np.float16))
    if dtype == "BF16":  # the upper half of a float32
        return float(np.uint32(bits << 16).view(np.float32))
    width = _FLOAT_BITS[dtype]
    return float(np.array(bits, dtype=f"u{width // 8}").view(f"f{width // 8}"))


def _decode_e4m3(bits: int) -> float:
    exponent, fraction = bits >> 3, bits & 7
    if bits == 0x7F:
        return float("nan")
    return (fraction / 8) * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
