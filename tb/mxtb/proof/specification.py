"""The specification of each block, as SMT-LIB text for one policy and source.

The text is in the ``.smt2`` files beside this one; here only numbers of ``mxmodel.formats`` and the policy's choices
are put in. Its last function, ``specified``, takes inputs and a result and says whether this is the result. It shares
no rounding and no clamp with either twin: SMT-LIB's floating point rounds, and clamps are bit-vector comparisons.
"""

from functools import cache
from pathlib import Path
from string import Template

from mxmodel.formats import E8M0, FP32, FP64, ElementFormat, SourceFormat
from mxmodel.rules import (
    BelowZero,
    DequantPolicy,
    ElementNan,
    ExponentPolicy,
    InvalidProduct,
    NanCode,
    NarrowPolicy,
    NonFiniteBlock,
    PreScale,
    Scale255,
)

__all__ = ["ldexp_specification", "narrow_specification", "shared_exponent_specification"]

_CLAMPED = {
    BelowZero.CLAMP_TO_ONE: "(at-least (_ bv1 9) (at-least (_ bv0 9) d))",
    BelowZero.CLAMP_TO_ZERO: "(at-least (_ bv0 9) d)",
    BelowZero.WRAP: "d",
}


def narrow_specification(source: SourceFormat, policy: NarrowPolicy) -> str:
    """N-1..N-6. ``specified`` takes x, scale (8 bits; without effect where the policy has none) and code.

    Raises ValueError for ``NanCode.MAX_NORMAL`` and ``InvalidProduct.POSITIVE``, which no hardware has.
    """
    if policy.nan is NanCode.MAX_NORMAL:
        raise ValueError(f"policy.nan must be PROPAGATE or ZERO in a specification, not {policy.nan.name}")
    if policy.invalid_product is not InvalidProduct.NEGATIVE:
        raise ValueError(f"policy.invalid_product must be NEGATIVE, not {policy.invalid_product.name}")
    return _filled("element", **_element(policy.element)) + _filled(
        "narrow",
        **_element(policy.element),
        **_source(source),
        scaled=_truth(policy.pre_scale is not PreScale.NONE),
        by_fp32_product=_truth(policy.pre_scale is PreScale.FP32_PRODUCT),
        scale_255_is_nan=_truth(policy.scale_255 is Scale255.NAN),
        nan_propagates=_truth(policy.nan is NanCode.PROPAGATE),
    )


def ldexp_specification(policy: DequantPolicy) -> str:
    """D-1..D-4. ``specified`` takes code, scale (8 bits) and fp32 bits.

    Raises ValueError for ``ElementNan.SIGNED``, which no hardware has.
    """
    if policy.element_nan is not ElementNan.CANONICAL:
        raise ValueError(f"policy.element_nan must be CANONICAL in a specification, not {policy.element_nan.name}")
    return _filled("element", **_element(policy.element)) + _filled(
        "ldexp",
        name=policy.element.name,
        scale_255_is_nan=_truth(policy.scale_255 is Scale255.NAN),
        quiet_nan=f"{FP32.quiet_nan_bits:08x}",
    )


def shared_exponent_specification(source: SourceFormat, policy: ExponentPolicy, lanes: int) -> str:
    """E-1..E-6. ``specified`` takes ``lanes`` words as one, lane 0 lowest, and the scale byte."""
    exponents = [
        f"(exponent-of ((_ extract {source.width * (lane + 1) - 1} {source.width * lane}) block))"
        for lane in range(lanes)
    ]
    # In pairs, as a knock-out: the order is of no matter to the maximum, and a tree is sooner proved than a chain.
    while len(exponents) > 1:
        pairs = [f"(larger {a} {b})" for a, b in zip(exponents[::2], exponents[1::2], strict=False)]
        exponents = pairs + exponents[len(exponents) // 2 * 2 :]
    return _filled(
        "shared_exponent",
        **_source(source),
        lanes=lanes,
        block_width=lanes * source.width,
        source_exponent_top=source.width - 2,
        source_exponent_fill=E8M0.width - source.exponent_bits,
        bias_difference=FP32.bias - source.bias,
        subnormal_exponent=_subnormal_exponent(source),
        largest=exponents[0],
        amount=policy.amount,
        clamped=_CLAMPED[policy.below_zero],
        non_finite_is_255=_truth(policy.non_finite is NonFiniteBlock.SCALE_255),
    )


def _subnormal_exponent(source: SourceFormat) -> str:
    """The fp32 exponent of a source subnormal or zero: its leading one's place decides, where fp32 has it normal."""
    text = "#x00"
    for place in range(source.trailing_bits):
        exponent = FP32.bias + 1 - source.bias - (source.trailing_bits - place)
        if exponent > 0:
            text = f"(ite (= ((_ extract {place} {place}) x) #b1) (_ bv{exponent} 8)\n  {text})"
    return text


def _element(element: ElementFormat) -> dict[str, str | int]:
    # So that IEEE arithmetic on as many bits has the element's values, but for the topmost binade.
    assert element.bias == (1 << (element.exponent_bits - 1)) - 1
    magnitudes = range(element.sign_bit)
    return {
        "name": element.name,
        "width": element.width,
        "sign_place": element.width - 1,
        "magnitude_width": element.width - 1,
        "magnitude_top": element.width - 2,
        "exponent_bits": element.exponent_bits,
        "wider_exponent_bits": element.exponent_bits + 1,
        "trailing_bits": element.trailing_bits,
        "trailing_top": element.trailing_bits - 1,
        "significand_bits": element.trailing_bits + 1,
        "trailing_fill": FP64.trailing_bits - element.trailing_bits,
        "top_field": (1 << element.exponent_bits) - 1 - element.bias + FP64.bias,
        "top_of_ieee": (1 << element.exponent_bits) - 2 - element.bias + FP64.bias,
        "max_normal_code": element.max_normal_code,
        "has_nan": _truth(element.has_nan),
        "has_infinity": _truth(element.infinity_code is not None),
        "first_nan": next((code for code in magnitudes if element.is_nan_code(code)), 0),
        "infinity_code": element.infinity_code or 0,
        "nan_code": element.nan_code or 0,
    }


def _source(source: SourceFormat) -> dict[str, str | int]:
    return {
        "source": source.name,
        "source_width": source.width,
        "source_sign_place": source.width - 1,
        "source_exponent_bits": source.exponent_bits,
        "source_trailing_bits": source.trailing_bits,
        "source_significand_bits": source.trailing_bits + 1,
    }


def _truth(value: bool) -> str:
    return "true" if value else "false"


@cache
def _template(stem: str) -> Template:
    return Template(Path(__file__).with_name(f"{stem}.smt2").read_text(encoding="utf-8"))


def _filled(stem: str, **numbers: str | int) -> str:
    return _template(stem).substitute(numbers)
