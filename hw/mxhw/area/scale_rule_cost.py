"""What N-5's rules for scales 254 and 255 cost: a lane that obeys them beside the same lane with an exact scale.

The fp32 product with a constant that underflows gives +0.0 at scale 254 and -Inf at 255, where exact arithmetic gives
the quotient. A lane under ``PreScale.FP32_PRODUCT`` carries both cases; its counterpart differs in nothing else.
"""

from dataclasses import replace

from mxhw.catalog import Entry, Policy
from mxmodel.rules import NarrowPolicy, PreScale

__all__ = ["exact_counterpart"]


def exact_counterpart(entry: Entry) -> Entry | None:
    """``entry`` with an exact scale in place of the fp32 product; None for an entry without that product.

    The counterpart is a configuration, and as a rule not in the catalogue.
    """
    if not any(_takes_product(policy) for policy in entry.policies):
        return None
    return replace(entry, policies=tuple(_exact(policy) for policy in entry.policies))


def _takes_product(policy: Policy) -> bool:
    return isinstance(policy, NarrowPolicy) and policy.pre_scale is PreScale.FP32_PRODUCT


def _exact(policy: Policy) -> Policy:
    return replace(policy, pre_scale=PreScale.EXACT) if isinstance(policy, NarrowPolicy) else policy
