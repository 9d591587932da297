"""Bit fields of the formats as Amaranth layouts (F-1, F-3): how every block of this floor names its ports' bits."""

from amaranth.lib import data

from mxmodel.formats import ElementFormat, SourceFormat

__all__ = ["element_layout", "source_layout"]


def source_layout(source: SourceFormat) -> data.StructLayout:
    """Fields of one word of ``source``, LSB first: ``trailing``, ``exponent`` (biased), ``sign``.

    Raises TypeError unless ``source`` is a ``SourceFormat``.
    """
    if not isinstance(source, SourceFormat):
        raise TypeError(f"source must be a SourceFormat, not {source!r}")
    return data.StructLayout({"trailing": source.trailing_bits, "exponent": source.exponent_bits, "sign": 1})


def element_layout(element: ElementFormat) -> data.StructLayout:
    """Fields of one code of ``element``, LSB first: ``trailing``, ``exponent`` (biased), ``sign``.

    Raises TypeError unless ``element`` is an ``ElementFormat``.
    """
    if not isinstance(element, ElementFormat):
        raise TypeError(f"element must be an ElementFormat, not {element!r}")
    return data.StructLayout({"trailing": element.trailing_bits, "exponent": element.exponent_bits, "sign": 1})
