"""What a machine computes by, where rule sets, seeds or documentation leave a choice: one frozen record of options."""

from dataclasses import dataclass
from enum import Enum

from mxmodel.accumulation import Accumulation
from mxmodel.isa import FirstWrite, MatmultBase, PsumFlag
from mxmodel.layout import RowOrder, TagOrder
from mxmodel.memory import PSUM_BANKS, Generation, PsumCommand
from mxmodel.pe_array import DoubleRowLayout, LoneFloat32r, Preparation, TagBase
from mxmodel.rules import BIRSIM, RuleSet

__all__ = [
    "AutoPsumAccumulate",
    "Key19",
    "MachineOptions",
    "PublicMovingLimit",
    "QuantizeTargets",
    "SecondRead",
    "command_of",
]


class AutoPsumAccumulate(Enum):
    """Function attribute key 19, "auto psum accumulate" (P-3)."""

    ABSENT = "absent"
    """The flags decide."""
    TRUE = "true"
    FALSE = "false"


class Key19(Enum):
    """What a value of key 19 forces on every matmul of the function (P-4, A)."""

    TRUE_IS_BODY = "true_is_body"
    """True adds, false clears and writes."""
    TRUE_IS_HEAD = "true_is_head"


class SecondRead(Enum):
    """What a read of an accumulator gives that has been read already (P-5, A)."""

    SAME_VALUE = "same_value"
    ZERO = "zero"


class QuantizeTargets(Enum):
    """Which x4 dtypes a quantise may write, where two checks of the same verifier differ (V)."""

    CLASS_TABLE = "class_table"
    """FP8: codes 8 and 9."""
    GEOMETRY = "geometry"
    """FP4 as well, as the geometry check and the BIR simulator have it: codes 2, 8 and 9."""


class PublicMovingLimit(Enum):
    """The largest free dimension of a moving operand in the public checks (V-1)."""

    CURRENT = "current"
    """The documentation of today, a result row of all PSUM banks: 4096 to fp32, 8192 to bf16."""
    ONE_BANK = "one_bank"
    """S1 and older documentation, a result row of one bank: 512 to fp32, 1024 to bf16."""


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """The rule set, and every option.

    Attributes
    ----------
    rules : of quantise and dequantise (R)
    accumulation, row_order : of the PE array's sums (M-4, L-6)
    lone_float32r, preparation, double_row_layout, tag_order, tag_base : as in ``pe_array`` (M-2, M-5, M-6, M-8)
    auto_psum_accumulate : function attribute key 19 (P-3)
    key_19 : what its values force (P-4, A)
    second_read : of a consumed accumulator (P-5, A)
    multi_bank_from : the first generation that clears several PSUM banks at once (P-2, A)
    most_banks_log2 : how many, there: 2^3 is all of them (P-2)
    quantize_targets, public_moving_limit : of the legality rules (V, V-1)
    """

    rules: RuleSet = BIRSIM
    accumulation: Accumulation = Accumulation.SEQUENTIAL
    row_order: RowOrder = RowOrder.PARTITION_MAJOR
    lone_float32r: LoneFloat32r = LoneFloat32r.REFUSED
    preparation: Preparation = Preparation.ROUND_THEN_SUBTRACT
    double_row_layout: DoubleRowLayout = DoubleRowLayout.ROW_MAJOR
    tag_order: TagOrder = TagOrder.NATURAL
    tag_base: TagBase = TagBase.GROUP_OF_FOUR
    auto_psum_accumulate: AutoPsumAccumulate = AutoPsumAccumulate.ABSENT
    key_19: Key19 = Key19.TRUE_IS_BODY
    second_read: SecondRead = SecondRead.SAME_VALUE
    multi_bank_from: Generation = Generation.V4
    most_banks_log2: int = 3
    quantize_targets: QuantizeTargets = QuantizeTargets.CLASS_TABLE
    public_moving_limit: PublicMovingLimit = PublicMovingLimit.CURRENT

    def __post_init__(self) -> None:
        most = PSUM_BANKS.bit_length() - 1
        if not 0 <= self.most_banks_log2 <= most:
            raise ValueError(f"most_banks_log2 must be in 0..{most}, not {self.most_banks_log2!r} (P-2)")

    def banks_log2(self, generation: Generation) -> int:
        """How many PSUM banks, as a power of two, one head may clear on ``generation`` (P-2)."""
        return self.most_banks_log2 if generation >= self.multi_bank_from else 0


def command_of(instruction: MatmultBase, options: MachineOptions) -> PsumCommand:
    """What a matmul does with its destination: key 19 where it is present, else the flags (P-2, P-3)."""
    forced = options.auto_psum_accumulate
    if forced is not AutoPsumAccumulate.ABSENT:
        body = (forced is AutoPsumAccumulate.TRUE) is (options.key_19 is Key19.TRUE_IS_BODY)
        return PsumCommand.BODY if body else PsumCommand.HEAD
    if instruction.first_write is FirstWrite.OVERWRITES:
        return PsumCommand.FIRST_WRITE
    if instruction.flags & PsumFlag.START:
        return PsumCommand.HEAD
    return PsumCommand.BODY if instruction.flags & PsumFlag.ACCUMULATE else PsumCommand.IDLE
