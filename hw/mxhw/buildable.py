"""What hardware can be built for: the checks of arguments that components share.

Each raises TypeError for an argument of another kind and ValueError for one that no component has.
"""

from mxmodel.formats import ELEMENTS, SOURCES, SourceFormat
from mxmodel.rules import DequantPolicy, ElementNan, ExponentPolicy, InvalidProduct, NanCode, NarrowPolicy

__all__ = ["check_dequant", "check_exponent", "check_lanes", "check_narrow", "check_source"]


def check_source(source: SourceFormat) -> None:
    """One of ``SOURCES``."""
    if not isinstance(source, SourceFormat):
        raise TypeError(f"source must be a SourceFormat, not {source!r}")
    if source not in SOURCES:
        raise ValueError(f"source must be one of {', '.join(s.name for s in SOURCES)}, not {source.name!r}")


def check_exponent(policy: ExponentPolicy) -> None:
    """Any policy."""
    if not isinstance(policy, ExponentPolicy):
        raise TypeError(f"policy must be an ExponentPolicy, not {policy!r}")


def check_narrow(policy: NarrowPolicy) -> None:
    """A policy of one of ``ELEMENTS``, without the members that the golden twin alone has (N-4, N-5)."""
    if not isinstance(policy, NarrowPolicy):
        raise TypeError(f"policy must be a NarrowPolicy, not {policy!r}")
    if policy.element not in ELEMENTS:
        names = ", ".join(element.name for element in ELEMENTS)
        raise ValueError(f"policy.element must be one of {names}, not {policy.element.name!r}")
    if policy.nan is NanCode.MAX_NORMAL:
        raise ValueError(f"policy.nan must be PROPAGATE or ZERO in hardware, not {policy.nan.name}")
    if policy.invalid_product is not InvalidProduct.NEGATIVE:
        raise ValueError(f"policy.invalid_product must be NEGATIVE in hardware, not {policy.invalid_product.name}")


def check_dequant(policy: DequantPolicy) -> None:
    """A policy without the member that the golden twin alone has (D-4)."""
    if not isinstance(policy, DequantPolicy):
        raise TypeError(f"policy must be a DequantPolicy, not {policy!r}")
    if policy.element_nan is not ElementNan.CANONICAL:
        raise ValueError(f"policy.element_nan must be CANONICAL in hardware, not {policy.element_nan.name}")


def check_lanes(lanes: int) -> None:
    """A positive int."""
    if not isinstance(lanes, int):
        raise TypeError(f"lanes must be an int, not {lanes!r}")
    if lanes < 1:
        raise ValueError(f"lanes must be at least 1, not {lanes!r}")
