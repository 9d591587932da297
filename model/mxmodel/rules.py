"""Rule sets as data (contract R): where the sources describe one algorithm with different edges.

A rule set is what a user picks. Each block sees only the part that concerns it, a *policy*: two rule sets that ask
the same of a block project to equal policies, so that one piece of hardware (or one proof) serves both.
"""

from dataclasses import dataclass
from enum import Enum

from mxmodel.formats import FP4_E2M1, ElementFormat

__all__ = [
    "BIRSIM",
    "BIRSIM_ALT",
    "DEVICE",
    "NKI_SIM",
    "OCP",
    "RULE_SETS",
    "BelowZero",
    "DequantPolicy",
    "ElementNan",
    "ExponentPolicy",
    "InvalidProduct",
    "NanCode",
    "NarrowPolicy",
    "NonFiniteBlock",
    "Overflow",
    "PreScale",
    "QuantizeToFp4",
    "RuleSet",
    "Scale255",
    "rule_set",
]


class BelowZero(Enum):
    """What a shared exponent below zero becomes (E-4)."""

    CLAMP_TO_ONE = "clamp_to_one"
    """max(1, max(0, d)): a result of 0 becomes 1 too."""
    CLAMP_TO_ZERO = "clamp_to_zero"
    WRAP = "wrap"
    """Modulo 256, as uint8 arithmetic does."""


class NonFiniteBlock(Enum):
    """What a block that holds an Inf or a NaN does to the shared exponent (E-6)."""

    NO_SPECIAL_CASE = "no_special_case"
    SCALE_255 = "scale_255"


class PreScale(Enum):
    """How an element is divided by its scale before it is narrowed (N-5)."""

    NONE = "none"
    """No scale: the unscaled encoder."""
    EXACT = "exact"
    """x * 2^(127 - s), exact for every s."""
    FP32_PRODUCT = "fp32_product"
    """The fp32 product with the constant (254 - s) << 23: +0.0 at s = 254, -Inf at s = 255."""


class Scale255(Enum):
    """What scale byte 255 means: to the narrowing encoder (N-6) and to the ldexp lane (D-3)."""

    POWER = "power"
    """An ordinary power of two, 2^128."""
    NAN = "nan"
    """NaN: codes 0 on the way in, 0x7FC00000 on the way out."""


class NanCode(Enum):
    """What a NaN becomes in an element format that has NaN (N-4)."""

    PROPAGATE = "propagate"
    """sign | canonical NaN code."""
    ZERO = "zero"
    """Signed zero; what a format without NaN always gives (N-3)."""
    MAX_NORMAL = "max_normal"
    """max-normal of the same sign: an engine that tests for overflow first would take NaN for one (A; E5M2's order of
    the two tests is not pinned). No built-in rule set has it, and no hardware here."""


class InvalidProduct(Enum):
    """The sign of the NaN that an invalid fp32 product is: ±Inf x 0, ±0 x -Inf (N-5, A)."""

    NEGATIVE = "negative"
    """Sign 1, the x86 default NaN."""
    POSITIVE = "positive"
    """Sign 0, as other hosts have it. No hardware here."""


class ElementNan(Enum):
    """The sign of what an element NaN becomes in fp32 (D-4, A). A NaN made by scale 255 has no sign to keep (D-3)."""

    CANONICAL = "canonical"
    """0x7FC00000: the sign is dropped."""
    SIGNED = "signed"
    """sign | 0x7FC00000. No hardware here."""


class Overflow(Enum):
    """What rounds past max-normal, and Inf, become (N-2, N-4b)."""

    SATURATE = "saturate"
    """max-normal of the same sign."""
    SPECIAL = "special"
    """Inf where the element has it, else NaN where it has that, else max-normal."""


class QuantizeToFp4(Enum):
    """Whether the whole-block operation may write FP4 (R, N-7)."""

    ALLOWED = "allowed"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class ExponentPolicy:
    """What ``shared_exponent`` needs to know.

    Attributes
    ----------
    amount : taken off the block's largest biased exponent (E-3)
    below_zero : E-4
    non_finite : E-6
    """

    amount: int
    below_zero: BelowZero
    non_finite: NonFiniteBlock

    @property
    def name(self) -> str:
        """A name that tells this policy from every other, fit for a Verilog identifier."""
        if self.non_finite is NonFiniteBlock.SCALE_255:
            return f"minus{self.amount}_{self.below_zero.value}_nan"
        return f"minus{self.amount}_{self.below_zero.value}"


@dataclass(frozen=True, kw_only=True)
class NarrowPolicy:
    """What ``narrow`` needs to know.

    Attributes
    ----------
    element : the target format
    nan : N-4; always ZERO for an element without NaN
    pre_scale : N-5
    scale_255 : N-6; POWER unless there is a scale
    invalid_product : N-5; NEGATIVE unless the pre-scale is the fp32 product
    """

    element: ElementFormat
    nan: NanCode
    pre_scale: PreScale
    scale_255: Scale255
    invalid_product: InvalidProduct = InvalidProduct.NEGATIVE

    @property
    def name(self) -> str:
        """A name that tells this policy from every other, fit for a Verilog identifier."""
        parts = [self.element.name]
        if self.element.has_nan:
            parts.append(self.nan.value)
        if self.pre_scale is not PreScale.NONE:
            parts += ["scaled", self.pre_scale.value]
        if self.scale_255 is Scale255.NAN:
            parts.append("nan255")
        if self.invalid_product is not InvalidProduct.NEGATIVE:
            parts += ["invalid", self.invalid_product.value]
        return "_".join(parts)


@dataclass(frozen=True, kw_only=True)
class DequantPolicy:
    """What ``ldexp`` needs to know.

    Attributes
    ----------
    element : the format of the codes
    scale_255 : D-3
    element_nan : D-4; CANONICAL for an element without NaN
    """

    element: ElementFormat
    scale_255: Scale255
    element_nan: ElementNan = ElementNan.CANONICAL

    @property
    def name(self) -> str:
        """A name that tells this policy from every other, fit for a Verilog identifier."""
        name = f"{self.element.name}_{self.scale_255.value}255"
        return name if self.element_nan is ElementNan.CANONICAL else f"{name}_nan_{self.element_nan.value}"


@dataclass(frozen=True, kw_only=True)
class RuleSet:
    """One column of the contract's table R.

    Attributes
    ----------
    name : the name that every output file and report gives
    emax_reduction : taken off EMAX before E-3 (0 or 1)
    fp4_emax_reduction : the same for FP4, where public code and S0 differ (R-1, an option)
    below_zero, non_finite, pre_scale, nan : as in the policies
    narrow_scale_255 : scale 255 on the way in (N-6)
    dequant_scale_255 : scale 255 on the way out (D-3)
    quantize_to_fp4 : whether ``quantize_mx`` may write FP4 (N-7)
    invalid_product : the sign of an invalid fp32 product (N-5); without effect where ``pre_scale`` is EXACT
    element_nan : the sign of an element NaN on the way out (D-4)
    """

    name: str
    emax_reduction: int
    fp4_emax_reduction: int
    below_zero: BelowZero
    non_finite: NonFiniteBlock
    pre_scale: PreScale
    nan: NanCode
    narrow_scale_255: Scale255
    dequant_scale_255: Scale255
    quantize_to_fp4: QuantizeToFp4
    invalid_product: InvalidProduct = InvalidProduct.NEGATIVE
    element_nan: ElementNan = ElementNan.CANONICAL

    def __post_init__(self) -> None:
        if self.pre_scale is PreScale.NONE:
            raise ValueError("pre_scale must be EXACT or FP32_PRODUCT in a rule set, not NONE")
        if self.pre_scale is PreScale.FP32_PRODUCT and self.narrow_scale_255 is Scale255.NAN:
            raise ValueError("narrow_scale_255 must be POWER where pre_scale is FP32_PRODUCT, not NAN")
        for label, value in (
            ("emax_reduction", self.emax_reduction),
            ("fp4_emax_reduction", self.fp4_emax_reduction),
        ):
            if value not in (0, 1):
                raise ValueError(f"{label} must be 0 or 1, not {value!r}")

    def exponent_policy(self, element: ElementFormat) -> ExponentPolicy:
        """The part of these rules that ``shared_exponent`` sees for ``element`` (E-3, E-4, E-6)."""
        reduction = self.fp4_emax_reduction if element == FP4_E2M1 else self.emax_reduction
        return ExponentPolicy(amount=element.emax - reduction, below_zero=self.below_zero, non_finite=self.non_finite)

    def narrow_policy(self, element: ElementFormat, *, scaled: bool) -> NarrowPolicy:
        """The part of these rules that ``narrow`` sees for ``element``, with or without a live scale (N-1..N-6)."""
        pre_scale = self.pre_scale if scaled else PreScale.NONE
        return NarrowPolicy(
            element=element,
            nan=self.nan if element.has_nan else NanCode.ZERO,
            pre_scale=pre_scale,
            scale_255=self.narrow_scale_255 if scaled else Scale255.POWER,
            invalid_product=self.invalid_product if pre_scale is PreScale.FP32_PRODUCT else InvalidProduct.NEGATIVE,
        )

    def dequant_policy(self, element: ElementFormat) -> DequantPolicy:
        """The part of these rules that ``ldexp`` sees for ``element`` (D-3, D-4)."""
        return DequantPolicy(
            element=element,
            scale_255=self.dequant_scale_255,
            element_nan=self.element_nan if element.has_nan else ElementNan.CANONICAL,
        )

    def writes(self, element: ElementFormat) -> bool:
        """Whether the whole-block quantise operation may write ``element`` under these rules (N-7)."""
        return element != FP4_E2M1 or self.quantize_to_fp4 is QuantizeToFp4.ALLOWED


BIRSIM = RuleSet(
    name="birsim",
    emax_reduction=0,
    fp4_emax_reduction=0,
    below_zero=BelowZero.CLAMP_TO_ONE,
    non_finite=NonFiniteBlock.NO_SPECIAL_CASE,
    pre_scale=PreScale.FP32_PRODUCT,
    nan=NanCode.ZERO,
    narrow_scale_255=Scale255.POWER,
    dequant_scale_255=Scale255.POWER,
    quantize_to_fp4=QuantizeToFp4.ALLOWED,
)
"""The BIR simulator (S0, S4); the default everywhere."""

BIRSIM_ALT = RuleSet(
    name="birsim_alt",
    emax_reduction=1,
    fp4_emax_reduction=1,
    below_zero=BelowZero.CLAMP_TO_ONE,
    non_finite=NonFiniteBlock.NO_SPECIAL_CASE,
    pre_scale=PreScale.FP32_PRODUCT,
    nan=NanCode.ZERO,
    narrow_scale_255=Scale255.POWER,
    dequant_scale_255=Scale255.POWER,
    quantize_to_fp4=QuantizeToFp4.ALLOWED,
)
"""The BIR simulator with its alternative EMAX on (R-1)."""

NKI_SIM = RuleSet(
    name="nki_sim",
    emax_reduction=0,
    fp4_emax_reduction=0,
    below_zero=BelowZero.WRAP,
    non_finite=NonFiniteBlock.NO_SPECIAL_CASE,
    pre_scale=PreScale.EXACT,
    nan=NanCode.PROPAGATE,
    narrow_scale_255=Scale255.POWER,
    dequant_scale_255=Scale255.POWER,
    quantize_to_fp4=QuantizeToFp4.REFUSED,
)
"""The NKI simulator (S1), its uint8 wrap kept."""

DEVICE = RuleSet(
    name="device",
    emax_reduction=1,
    fp4_emax_reduction=1,
    below_zero=BelowZero.CLAMP_TO_ZERO,
    non_finite=NonFiniteBlock.NO_SPECIAL_CASE,
    pre_scale=PreScale.EXACT,
    nan=NanCode.PROPAGATE,
    narrow_scale_255=Scale255.POWER,
    dequant_scale_255=Scale255.NAN,
    quantize_to_fp4=QuantizeToFp4.REFUSED,
)
"""The vendor's public documentation from v2.31 on."""

OCP = RuleSet(
    name="ocp",
    emax_reduction=0,
    fp4_emax_reduction=0,
    below_zero=BelowZero.CLAMP_TO_ZERO,
    non_finite=NonFiniteBlock.SCALE_255,
    pre_scale=PreScale.EXACT,
    nan=NanCode.PROPAGATE,
    narrow_scale_255=Scale255.NAN,
    dequant_scale_255=Scale255.NAN,
    quantize_to_fp4=QuantizeToFp4.ALLOWED,
)
"""The OCP Microscaling Formats specification v1.0."""

RULE_SETS = (BIRSIM, BIRSIM_ALT, NKI_SIM, DEVICE, OCP)


def rule_set(name: str) -> RuleSet:
    """The built-in rule set named ``name``; ValueError listing the names otherwise."""
    for rules in RULE_SETS:
        if rules.name == name:
            return rules
    raise ValueError(f"rules must be one of {', '.join(r.name for r in RULE_SETS)}, not {name!r}")
