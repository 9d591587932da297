"""The machine: a dispatcher, four engines, a DMA queue and three memories, joined by channels and sockets.

    dispatcher --requests--> tensor | vector | gpsimd | activation | dma --sockets--> sbuf, psum, dram
         ^---------------------- done ----------------------'

One instruction is in flight, and they retire in program order; memories change only inside an instruction's
transaction. So nothing that a schedule decides can change a value.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.bad_input import BadInput
from mxmodel.block_functions import Blocks, GoldenBlocks
from mxmodel.engines import Activation, Dma, Done, EngineModule, GpSimd, Machine, Tensor, Vector
from mxmodel.isa import Engine, Instruction
from mxmodel.kernel import Channel, In, Module, Out, Process, Simulation
from mxmodel.legality import Violation, check
from mxmodel.machine_options import MachineOptions
from mxmodel.memory import DEFAULT_DRAM_BYTES, Generation, Memory, Psum, Transfer, UnwrittenRead, sbuf
from mxmodel.memory_object import MemoryObject
from mxmodel.program import Program
from mxmodel.trace import Trace, TraceKind

__all__ = ["ExecutionFault", "GoldenBlocks", "IllegalProgram", "NeuronCore", "Verification"]


class Verification(Enum):
    """Whether a program is judged before it runs."""

    FIRST = "first"
    SKIPPED = "skipped"


class ExecutionFault(BadInput):
    """An instruction cannot be carried out; the message names it, and what was wanted."""


class IllegalProgram(BadInput):
    """A program breaks rules of legality; ``violations`` has every one, with the index of its instruction."""

    def __init__(self, program: Program, violations: Sequence[tuple[int, Violation]]) -> None:
        index, first = violations[0]
        more = "" if len(violations) == 1 else f", and {len(violations) - 1} more"
        super().__init__(f"{program.place_of(index)}: {first}{more}")
        self.violations = tuple(violations)


class NeuronCore(Module):
    """A core, its memories empty.

    Parameters
    ----------
    generation : sizes and abilities
    options : rule set and options; a program brings its own
    blocks : the twin that computes shared exponents, narrows and dequantises
    dram_bytes : of DRAM; costs nothing until it is written
    trace : None keeps no trace
    """

    def __init__(
        self,
        *,
        generation: Generation = Generation.V4,
        options: MachineOptions | None = None,
        blocks: Blocks | None = None,
        dram_bytes: int = DEFAULT_DRAM_BYTES,
        trace: Trace | None = None,
    ) -> None:
        super().__init__("core")
        self.generation, self.options = generation, options or MachineOptions()
        self.trace = trace
        observe = None if trace is None else self._observed
        self.memories: dict[Space, Memory] = {
            Space.SBUF: sbuf(generation, observe),
            Space.PSUM: Psum(most_banks_log2=self.options.banks_log2(generation), observe=observe),
            Space.DRAM: Memory(Space.DRAM, dram_bytes, partitions=1, observe=observe),
        }
        self.machine = Machine(generation=generation, options=self.options, blocks=blocks or GoldenBlocks())
        self.dispatcher = _Dispatcher(self, trace)
        kinds: tuple[type[EngineModule], ...] = (Tensor, Vector, GpSimd, Activation, Dma)
        self.engines = {kind.code: kind(kind.__name__.lower(), self, self.machine) for kind in kinds}
        for code, engine in self.engines.items():
            self.dispatcher.join(code, engine)
            for space, socket in engine.memories.items():
                socket.bind(self.memories[space].transport)

    def run(
        self, program: Program, *, verification: Verification = Verification.FIRST, schedule: int | None = None
    ) -> None:
        """Put the program's tensors in place and carry its instructions out, in order.

        ``schedule`` seeds the order in which ready processes run; it cannot change a value.

        Raises IllegalProgram, before anything is changed, if an instruction breaks a rule and ``verification`` is
        FIRST; ExecutionFault, naming the instruction, if one cannot be carried out.
        """
        if program.generation is not self.generation or program.options != self.options:
            raise ValueError(
                f"program must be for this core's generation and options, {self.generation.name} and {self.options}, "
                f"not {program.generation.name} and {program.options}"
            )
        if verification is Verification.FIRST:
            violations = check(program)
            if violations:
                raise IllegalProgram(program, violations)
        self.dispatcher.program, self.dispatcher.index = program.instructions, -1
        for name, tensor in program.tensors.items():
            if tensor.contents is not None:
                try:
                    value = MemoryObject(tensor.contents, tensor.place.dtype)
                    self.memories[tensor.place.space].write(tensor.place, value)
                except ValueError as error:
                    where = (
                        f"{program.name}: tensor {name}"
                        if tensor.source is None
                        else f"{tensor.source}: tensors.{name}"
                    )
                    raise ExecutionFault(f"{where}: {error}") from error
        simulation = Simulation(self, schedule=schedule)
        try:
            simulation.run()
        except BadInput:
            raise
        except ValueError as error:
            index = self.dispatcher.index
            raise ExecutionFault(f"{program.place_of(index)}: {_told(error, program, index)}") from error

    @property
    def current(self) -> str:
        """The instruction under way, or carried out last, as messages name it."""
        index = self.dispatcher.index
        return f"instruction {index} ({self.dispatcher.program[index]})"

    def reset(self) -> None:
        """Empty the memories and the accumulator; cheaper than another core for many small programs."""
        for memory in self.memories.values():
            memory.clear()
        activation = self.engines[Engine.ACT]
        assert isinstance(activation, Activation)
        activation.reset()

    def failures(self, program: Program) -> list[str]:
        """The expectations of ``program`` that do not hold, one line each."""
        lines = []
        for expectation in program.expectations:
            memory = self.memories[expectation.place.space]
            try:
                got = memory.read(expectation.place).containers
            except ValueError as error:
                lines.append(f"{expectation.name}: {error}")
                continue
            difference = expectation.difference(got)
            if difference is not None:
                lines.append(difference)
        return lines

    def _observed(self, transfer: Transfer) -> None:
        assert self.trace is not None
        index = self.dispatcher.index
        instruction = self.dispatcher.program[index] if 0 <= index < len(self.dispatcher.program) else None
        self.trace.add(
            TraceKind.ACCESS,
            index=index,
            instruction="" if instruction is None else str(instruction),
            module=f"{self.path}.{transfer.pattern.space.value}",
            action=transfer.action,
            place=str(transfer.pattern),
            size=transfer.size,
        )


_REMEDIES = {
    Space.SBUF: "load it",
    Space.PSUM: "begin with a product that overwrites",
    Space.DRAM: "give its tensor contents",
}


def _told(error: ValueError, program: Program, index: int) -> str:
    """What was wrong; of bytes that nothing wrote, also through which operand and of which tensor, and the remedy."""
    if not isinstance(error, UnwrittenRead):
        return str(error)
    instruction = program.instructions[index]
    operand, pattern = _operand_of(instruction, error.pattern)
    tensor = program.tensor_of(pattern)
    who = operand if tensor is None else f"{operand} (tensor {tensor})"
    action = "added onto" if operand in instruction.outputs else "read"
    return (
        f"{who}: {error.address} is {action} before anything wrote it; {_REMEDIES[pattern.space]}, or set "
        "uninitialised: allowed (P-4)"
    )


def _operand_of(instruction: Instruction, read: AccessPattern) -> tuple[str, AccessPattern]:
    """(attribute, pattern) of the operand that an access is of: the same place, of scales fewer partitions (L-3)."""
    for name, pattern in instruction.operands():
        for part, one in ((name, pattern), (f"rows of {name}", pattern.rows)):
            if (
                one is not None
                and replace(one, partitions=read.partitions, partition_pattern=read.partition_pattern) == read
            ):
                return part, one
    return "operand", read


class _Dispatcher(Module):
    """Hands out the program, one instruction at a time, and waits for each to retire."""

    def __init__(self, core: NeuronCore, trace: Trace | None) -> None:
        super().__init__("dispatcher", core)
        self.program: tuple[Instruction, ...] = ()
        self.index = 0
        self._trace = trace
        self._requests: dict[Engine, Out[Instruction]] = {}
        self._done: dict[Engine, In[Done]] = {}
        self._paths: dict[Engine, str] = {}
        self.process(self.dispatch)

    def join(self, code: Engine, engine: EngineModule) -> None:
        """Two channels, there and back."""
        requests: Out[Instruction] = Out(self, f"{engine.name}_requests", Instruction)
        done: In[Done] = In(self, f"{engine.name}_done", Done)
        there: Channel[Instruction] = Channel(f"{engine.path}.requests", Instruction, capacity=1)
        back: Channel[Done] = Channel(f"{engine.path}.done", Done, capacity=1)
        requests.bind(there)
        engine.requests.bind(there)
        engine.done.bind(back)
        done.bind(back)
        self._requests[code], self._done[code], self._paths[code] = requests, done, engine.path

    def dispatch(self) -> Process:
        """Program order, one in flight."""
        for index, instruction in enumerate(self.program):
            self.index = index
            code = instruction.engine
            if code not in self._requests:
                raise ValueError(f"engine must be one of {', '.join(e.name for e in self._requests)}, not {code.name}")
            self._tell(TraceKind.ISSUE, instruction, code)
            yield self._requests[code].put(instruction)
            done = yield self._done[code].get()
            assert done.instruction is instruction, "instructions retire in program order"
            self._tell(TraceKind.RETIRE, instruction, code)

    def _tell(self, kind: TraceKind, instruction: Instruction, code: Engine) -> None:
        if self._trace is not None:
            self._trace.add(kind, index=self.index, instruction=str(instruction), module=self._paths[code])
