"""Named bins: what a stimulus can show of an entry, what it cannot and why, and what it did show.

Every case is put into one class along each of a few axes. A bin is a class of one axis, or a pair of classes of two (a
cross). One joint histogram of all axes is counted; every bin is a marginal of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Axis", "Bin", "Coverage", "Plan", "Reason", "Rule", "Tally"]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One classification of the cases; ``labels`` names its classes."""

    name: str
    labels: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a bin cannot be hit: the clause's id, and the words."""

    clause: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A reason, and what it excludes: every combination with one of ``where``'s labels on each of its axes."""

    reason: Reason
    where: Mapping[str, frozenset[str]]

    def excludes(self, labels: Mapping[str, str]) -> bool:
        """Whether it speaks of a bin with these labels (axis name -> label)."""
        return all(labels.get(axis) in excluded for axis, excluded in self.where.items())


@dataclass(frozen=True, kw_only=True)
class Bin:
    """One bin; ``impossible`` tells why nothing can hit it, or is None."""

    labels: Mapping[str, str]
    impossible: Reason | None

    @property
    def name(self) -> str:
        return ", ".join(f"{axis} {label}" for axis, label in self.labels.items())


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """The bins of one policy.

    Attributes
    ----------
    label : tells the policies of one entry apart; empty where there is one
    axes : in the order of the joint histogram's dimensions
    groups : axis names of every point (one) and cross (two)
    possible : bool, one dimension for each axis: which combinations the contract permits
    rules : why others are impossible, the first that excludes a bin is told
    otherwise : the reason where no rule speaks
    """

    label: str
    axes: tuple[Axis, ...]
    groups: tuple[tuple[str, ...], ...]
    possible: NDArray[np.bool_]
    rules: tuple[Rule, ...]
    otherwise: Reason

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis.labels) for axis in self.axes)

    def count(self, classes: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
        """The joint histogram of cases; ``classes`` is one integer array [cases] for each axis."""
        key = classes[0].astype(np.int32)
        for axis, index in zip(self.axes[1:], classes[1:], strict=True):
            key *= np.int32(len(axis.labels))
            key += index
        return np.bincount(key, minlength=self.possible.size).reshape(self.shape).astype(np.int64)

    def reason(self, labels: Mapping[str, str]) -> Reason:
        """Why ``labels`` (axis name -> label) are impossible together."""
        return next((rule.reason for rule in self.rules if rule.excludes(labels)), self.otherwise)

    @cached_property
    def bins(self) -> tuple[Bin, ...]:
        """Every bin of every group, in order."""
        return tuple(bin for group in self.groups for bin in self._of_group(group))

    def _of_group(self, group: tuple[str, ...]) -> Iterator[Bin]:
        axes = [axis for axis in self.axes if axis.name in group]
        possible = self.marginal(self.possible, group)
        for place in np.ndindex(possible.shape):
            labels = {axis.name: axis.labels[index] for axis, index in zip(axes, place, strict=True)}
            yield Bin(labels=labels, impossible=None if possible[place] else self.reason(labels))

    def marginal(self, joint: NDArray[Any], group: tuple[str, ...]) -> NDArray[Any]:
        """``joint`` summed (bool: any) over the axes that ``group`` does not name."""
        others = tuple(index for index, axis in enumerate(self.axes) if axis.name not in group)
        return np.asarray(joint.any(axis=others) if joint.dtype == bool else joint.sum(axis=others))


@dataclass(frozen=True, kw_only=True, eq=False)
class Tally:
    """What hit a plan: ``joint`` is its histogram."""

    plan: Plan
    joint: NDArray[np.int64]

    @cached_property
    def hits(self) -> NDArray[np.int64]:
        """How often each of ``plan.bins`` was hit."""
        return np.concatenate([self.plan.marginal(self.joint, group).reshape(-1) for group in self.plan.groups])


@dataclass(frozen=True, kw_only=True, eq=False)
class Coverage:
    """What was shown of one entry: a tally for each of its policies."""

    entry: str
    tallies: tuple[Tally, ...]

    @property
    def possible(self) -> int:
        """Bins that can be hit."""
        return sum(bin.impossible is None for tally in self.tallies for bin in tally.plan.bins)

    @property
    def impossible(self) -> int:
        """Bins that cannot, each with its reason."""
        return sum(len(tally.plan.bins) for tally in self.tallies) - self.possible

    @property
    def hit(self) -> int:
        return self.possible - len(self.missed)

    @property
    def percent(self) -> float:
        return 100.0 * self.hit / self.possible

    @cached_property
    def missed(self) -> list[str]:
        """Names of the bins that can be hit and were not."""
        return [
            _prefixed(tally.plan, bin.name)
            for tally in self.tallies
            for bin, hits in zip(tally.plan.bins, tally.hits, strict=True)
            if bin.impossible is None and hits == 0
        ]

    @cached_property
    def violated(self) -> list[str]:
        """Combinations that were met and are impossible, with the clause that says so: a fault of a rule or a twin."""
        names = []
        for tally in self.tallies:
            plan = tally.plan
            for place in np.argwhere((tally.joint > 0) & ~plan.possible):
                labels = {axis.name: axis.labels[index] for axis, index in zip(plan.axes, place, strict=True)}
                reason = plan.reason(labels)
                name = Bin(labels=labels, impossible=reason).name
                names.append(f"{_prefixed(plan, name)} ({reason.clause}: {reason.why})")
        return names

    def as_json(self) -> dict[str, Any]:
        return {
            "possible": self.possible,
            "hit": self.hit,
            "impossible": self.impossible,
            "missed": self.missed,
            "impossible_hit": self.violated,
        }


def _prefixed(plan: Plan, name: str) -> str:
    return f"{plan.label}: {name}" if plan.label else name
