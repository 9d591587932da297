"""Number formats as data (contract F): the one place where a width, a bias or a special code is written.

Model, RTL, stimulus, catalogue and docs all take these descriptor objects. Only independent constants are
stored; everything that follows from them is a property.
"""

from dataclasses import dataclass, field

__all__ = [
    "BF16",
    "BIR_DTYPES",
    "E8M0",
    "ELEMENTS",
    "FP4_E2M1",
    "FP8_E4M3",
    "FP8_E5M2",
    "FP16",
    "FP32",
    "FP64",
    "SOURCES",
    "X4_DTYPES",
    "BirDtype",
    "BlockGeometry",
    "ElementFormat",
    "MX_BLOCK",
    "ScaleFormat",
    "SourceFormat",
    "bir_dtype",
    "element_format",
    "source_format",
]


@dataclass(frozen=True, kw_only=True)
class SourceFormat:
    """An IEEE 754 binary interchange format that a tensor may arrive in (F-3).

    Attributes
    ----------
    name : short name, as in Verilog module names
    exponent_bits, trailing_bits : field widths in bits; one sign bit is implied
    """

    name: str
    exponent_bits: int
    trailing_bits: int

    @property
    def width(self) -> int:
        """Bits in all: sign, exponent, trailing significand."""
        return 1 + self.exponent_bits + self.trailing_bits

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def max_biased_exponent(self) -> int:
        """The all-ones exponent: Inf and NaN."""
        return (1 << self.exponent_bits) - 1

    @property
    def trailing_mask(self) -> int:
        return (1 << self.trailing_bits) - 1

    @property
    def magnitude_mask(self) -> int:
        """All bits but the sign."""
        return (1 << (self.width - 1)) - 1

    @property
    def infinity_bits(self) -> int:
        return self.max_biased_exponent << self.trailing_bits

    @property
    def quiet_nan_bits(self) -> int:
        """The canonical NaN: sign 0, only the quiet bit set."""
        return self.infinity_bits | (1 << (self.trailing_bits - 1))


@dataclass(frozen=True, kw_only=True)
class ElementFormat:
    """An MX element: a narrow float with subnormals (F-1).

    Attributes
    ----------
    name : short name, as in Verilog module names and files
    exponent_bits, trailing_bits, bias : the fields; one sign bit is implied
    max_normal_code : the code (sign 0) of the largest finite value
    infinity_code : the code (sign 0) of Inf, or None
    nan_code : the canonical NaN code (sign 0), or None
    packed_name : name of the x4 container in the BIR and in the public API
    packed_bits : width of the x4 container in bits
    """

    name: str
    exponent_bits: int
    trailing_bits: int
    bias: int
    max_normal_code: int
    infinity_code: int | None
    nan_code: int | None
    packed_name: str
    packed_bits: int

    @property
    def width(self) -> int:
        """Bits of a code: sign, exponent, trailing significand."""
        return 1 + self.exponent_bits + self.trailing_bits

    @property
    def code_count(self) -> int:
        return 1 << self.width

    @property
    def sign_bit(self) -> int:
        """The sign's weight in a code; also the code of -0."""
        return 1 << (self.width - 1)

    @property
    def trailing_mask(self) -> int:
        return (1 << self.trailing_bits) - 1

    @property
    def emax(self) -> int:
        """Exponent of the largest normal binade (unbiased)."""
        return (self.max_normal_code >> self.trailing_bits) - self.bias

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal binade (unbiased); subnormals share its grid."""
        return 1 - self.bias

    @property
    def has_nan(self) -> bool:
        return self.nan_code is not None

    def is_nan_code(self, code: int) -> bool:
        """Whether ``code`` (any sign) decodes to NaN."""
        magnitude = code & (self.sign_bit - 1)
        first = self.nan_code if self.infinity_code is None else self.infinity_code + 1
        return first is not None and magnitude >= first


@dataclass(frozen=True, kw_only=True)
class ScaleFormat:
    """The shared scale: a biased exponent alone, no sign, no zero (F-2). Value 2^(byte - bias)."""

    name: str
    width: int
    bias: int

    @property
    def max_byte(self) -> int:
        """255: NaN or the largest power, by rule set (D-3)."""
        return (1 << self.width) - 1


@dataclass(frozen=True, kw_only=True)
class BlockGeometry:
    """The elements that share one scale: ``rows`` partitions by ``columns`` of the free dimension (E-2)."""

    rows: int
    columns: int

    @property
    def size(self) -> int:
        return self.rows * self.columns


FP32 = SourceFormat(name="fp32", exponent_bits=8, trailing_bits=23)
BF16 = SourceFormat(name="bf16", exponent_bits=8, trailing_bits=7)
FP16 = SourceFormat(name="fp16", exponent_bits=5, trailing_bits=10)
FP64 = SourceFormat(name="fp64", exponent_bits=11, trailing_bits=52)
"""Accepted by ``narrow`` without a scale only (N-7); never an RTL source."""

FP4_E2M1 = ElementFormat(
    name="fp4_e2m1",
    exponent_bits=2,
    trailing_bits=1,
    bias=1,
    max_normal_code=0x7,
    infinity_code=None,
    nan_code=None,
    packed_name="float4_e2m1fn_x4",
    packed_bits=16,
)
FP8_E4M3 = ElementFormat(
    name="fp8_e4m3",
    exponent_bits=4,
    trailing_bits=3,
    bias=7,
    max_normal_code=0x7E,
    infinity_code=None,
    nan_code=0x7F,
    packed_name="float8_e4m3fn_x4",
    packed_bits=32,
)
FP8_E5M2 = ElementFormat(
    name="fp8_e5m2",
    exponent_bits=5,
    trailing_bits=2,
    bias=15,
    max_normal_code=0x7B,
    infinity_code=0x7C,
    nan_code=0x7E,
    packed_name="float8_e5m2_x4",
    packed_bits=32,
)
E8M0 = ScaleFormat(name="e8m0", width=8, bias=127)
MX_BLOCK = BlockGeometry(rows=8, columns=4)

ELEMENTS = (FP4_E2M1, FP8_E4M3, FP8_E5M2)
SOURCES = (FP32, BF16, FP16)
"""What the datapath takes; every one widens exactly to fp32 (F-3)."""


@dataclass(frozen=True, kw_only=True)
class BirDtype:
    """One row of the BIR dtype table (F-4).

    Attributes
    ----------
    code : the BIR's dtype code
    name : the field's name for it
    size : bytes of one container
    wire : the byte that the v4 encoder stamps
    wire_before_v4 : the same before v4
    emax_byte : the simulator's max-exponent table at this code, or None outside its range 2..9
    element : the MX element format of an x4 container, else None
    """

    code: int
    name: str
    size: int
    wire: int
    wire_before_v4: int
    emax_byte: int | None = None
    element: ElementFormat | None = field(default=None)

    @property
    def elements_per_container(self) -> int:
        """4 for the x4 dtypes, else 1 (F-5)."""
        return 1 if self.element is None else 4


def _bir(
    code: int,
    name: str,
    size: int,
    wire: int,
    *,
    wire_before_v4: int | None = None,
    emax_byte: int | None = None,
    element: ElementFormat | None = None,
) -> BirDtype:
    return BirDtype(
        code=code,
        name=name,
        size=size,
        wire=wire,
        wire_before_v4=wire if wire_before_v4 is None else wire_before_v4,
        emax_byte=emax_byte,
        element=element,
    )


BIR_DTYPES = (
    _bir(0, "uint8", 1, 0x03),
    _bir(1, "int8", 1, 0x02),
    _bir(2, "float4_e2m1fn_x4", 2, 0x10, wire_before_v4=0x05, emax_byte=2, element=FP4_E2M1),
    _bir(3, "float8e3", 1, 0x0D, emax_byte=0),
    _bir(4, "float8e4", 1, 0x0E, emax_byte=0),
    _bir(5, "float8_e4m3fn", 1, 0x0E, emax_byte=8),
    _bir(6, "float8_e8m0fnu", 1, 0x03, emax_byte=0),
    _bir(7, "float8e5", 1, 0x0F, emax_byte=15),
    _bir(8, "float8_e4m3fn_x4", 4, 0x0E, emax_byte=8, element=FP8_E4M3),
    _bir(9, "float8_e5m2_x4", 4, 0x0F, emax_byte=15, element=FP8_E5M2),
    _bir(10, "uint16", 2, 0x05),
    _bir(11, "int16", 2, 0x04),
    _bir(12, "bfloat16", 2, 0x06),
    _bir(13, "float16", 2, 0x07),
    _bir(14, "uint32", 4, 0x09),
    _bir(15, "int32", 4, 0x08),
    _bir(16, "float32", 4, 0x0A),
    _bir(17, "float32r", 4, 0x0B),
    _bir(18, "uint64", 8, 0x01),
    _bir(19, "int64", 8, 0x0C),
)
"""Indexed by code (F-4). Legacy codes 3 and 4 are not MX targets."""

X4_DTYPES = tuple(dtype.code for dtype in BIR_DTYPES if dtype.elements_per_container == 4)
"""Exactly the dtypes that hold four logical elements in one container (F-5)."""


def bir_dtype(code: int) -> BirDtype:
    """The row of ``BIR_DTYPES`` at ``code``; ValueError "unknown dtype" outside 0..19 (F-4)."""
    if not 0 <= code < len(BIR_DTYPES):
        raise ValueError(f"unknown dtype: code must be in 0..{len(BIR_DTYPES) - 1}, not {code!r}")
    return BIR_DTYPES[code]


def element_format(name: str) -> ElementFormat:
    """The element named ``name``; ValueError listing the names otherwise."""
    for element in ELEMENTS:
        if element.name == name:
            return element
    raise ValueError(f"element must be one of {', '.join(e.name for e in ELEMENTS)}, not {name!r}")


def source_format(name: str) -> SourceFormat:
    """The datapath source named ``name``; ValueError listing the names otherwise."""
    for source in SOURCES:
        if source.name == name:
            return source
    raise ValueError(f"source must be one of {', '.join(s.name for s in SOURCES)}, not {name!r}")
