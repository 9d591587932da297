"""The untimed kernel: modules joined by channels, run until nothing can move (SystemC's words, without a clock).

A module has ports; a port is bound to a channel, or to a port of the module around it; a process is a generator of a
module that gets and puts values:

    class Doubler(Module):
        def __init__(self, name: str, parent: Module | None = None) -> None:
            super().__init__(name, parent)
            self.i, self.o = In(self, "i", int), Out(self, "o", int)
            self.process(self.run)

        def run(self) -> Process:
            while True:
                value = yield self.i.accept()
                yield self.o.put(2 * value)

Every channel has one reader and one writer, both block, and nobody can look whether a value is there. So what a process
sees never depends on which process ran first: a schedule may decide whether a bounded channel deadlocks, never a value.
There is no time: values and their order only.
"""

import random
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

__all__ = [
    "Channel",
    "Deadlock",
    "ElaborationError",
    "Event",
    "In",
    "Module",
    "Out",
    "Process",
    "Simulation",
    "Socket",
]

T = TypeVar("T")
Request = TypeVar("Request")
Response = TypeVar("Response")

Process = Generator["_Wait", Any, None]
"""What a process function returns: it yields what ``In`` and ``Out`` give it, and receives the values got."""


class ElaborationError(ValueError):
    """The modules are not joined as they must be; the message names every port concerned."""


class Deadlock(RuntimeError):
    """Nothing can move, but a process is in the middle of something; the message names each process and its port."""


class Module:
    """A part of the machine: it owns ports, processes and other modules.

    ``name`` is unique among the modules of ``parent``; ``path`` is the hierarchical name, such as ``core.vector``.
    Raises ValueError for a name that is taken.
    """

    def __init__(self, name: str, parent: "Module | None" = None) -> None:
        self.name = name
        self.parent = parent
        self.path: str = name if parent is None else f"{parent.path}.{name}"
        self.children: dict[str, Module] = {}
        self.ports: list[_Port[Any]] = []
        self.sockets: list[Socket[Any, Any]] = []
        self.processes: list[tuple[str, Callable[[], Process]]] = []
        if parent is not None:
            if name in parent.children:
                raise ValueError(f"name must be unique in {parent.path}, not {name!r} again")
            parent.children[name] = self

    def process(self, function: Callable[[], Process]) -> None:
        """Have ``function``, which makes a generator, run as a process of this module."""
        self.processes.append((f"{self.path}.{function.__name__}", function))

    def walk(self) -> "Iterator[Module]":
        """This module and all below it."""
        yield self
        for child in self.children.values():
            yield from child.walk()


class Channel(Generic[T]):
    """A queue between one writer and one reader; unbounded, or of ``capacity`` values.

    ``kind`` is the type of the values. Raises ValueError for a capacity below 1.
    """

    def __init__(self, name: str, kind: type[T], *, capacity: int | None = None) -> None:
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity must be 1 or more, or None, not {capacity!r}")
        self.name, self.kind, self.capacity = name, kind, capacity
        self.values: deque[T] = deque()
        self.reader: In[T] | None = None
        self.writer: Out[T] | None = None

    @property
    def full(self) -> bool:
        return self.capacity is not None and len(self.values) >= self.capacity


class _Port(Generic[T]):
    """One end of a channel, belonging to a module; ``kind`` is the type of its values."""

    def __init__(self, module: Module, name: str, kind: type[T]) -> None:
        self.kind = kind
        self.path = f"{module.path}.{name}"
        self.bound: Channel[T] | _Port[T] | None = None
        module.ports.append(self)

    def bind(self, to: "Channel[T] | _Port[T]") -> None:
        """Join this port to a channel, or to the port of the module around that stands for it.

        Raises ElaborationError if it is bound already, if the kinds of values differ, or the directions.
        """
        if self.bound is not None:
            raise ElaborationError(f"{self.path} must be bound once, not again")
        if isinstance(to, _Port) and type(to) is not type(self):
            raise ElaborationError(f"{self.path} must be bound to a port of its own direction, not to {to.path}")
        if to.kind is not self.kind:
            raise ElaborationError(f"{self.path} must be bound to {self.kind.__name__}, not {to.kind.__name__}")
        self.bound = to

    @property
    def channel(self) -> Channel[T]:
        """The channel at the end of the bindings; ElaborationError if there is none."""
        to = self.bound
        if to is None:
            raise ElaborationError(f"{self.path} must be bound, but is not")
        return to if isinstance(to, Channel) else to.channel


class In(_Port[T]):
    """Where values come in."""

    def get(self) -> "_Wait":
        """Wait for a value. Still waiting when nothing can move any more is a deadlock."""
        return _Wait(self, _Waiting.GET)

    def accept(self) -> "_Wait":
        """Wait for the next piece of work. Still waiting when nothing can move is how a process ends well."""
        return _Wait(self, _Waiting.ACCEPT)


class Out(_Port[T]):
    """Where values go out."""

    def put(self, value: T) -> "_Wait":
        """Wait for room, then put ``value``. TypeError if it is not of the port's kind."""
        if not isinstance(value, self.kind):
            raise TypeError(f"{self.path} must be given {self.kind.__name__}, not {type(value).__name__}")
        return _Wait(self, _Waiting.PUT, value)


class Socket(Generic[Request, Response]):
    """A blocking transport: a call that a target module answers at once, inside the caller's transaction.

    Memories sit behind sockets, so that nothing changes them but the transaction under way.
    """

    def __init__(self, module: Module, name: str) -> None:
        self.path = f"{module.path}.{name}"
        self._target: Callable[[Request], Response] | None = None
        module.sockets.append(self)

    def bind(self, target: Callable[[Request], Response]) -> None:
        """Join it to the target's function. ElaborationError if it is bound already."""
        if self._target is not None:
            raise ElaborationError(f"{self.path} must be bound once, not again")
        self._target = target

    @property
    def is_bound(self) -> bool:
        return self._target is not None

    def transport(self, request: Request) -> Response:
        """Have the target carry out ``request``."""
        if self._target is None:
            raise ElaborationError(f"{self.path} must be bound, but is not")
        return self._target(request)


@dataclass(frozen=True, kw_only=True)
class Event:
    """One transfer over a channel: in this order, there is no time."""

    order: int
    process: str
    channel: str
    value: object


class Simulation:
    """An elaborated tree of modules, ready to run once.

    Parameters
    ----------
    top : the root module
    schedule : None runs processes first come, first served; an integer seeds a random order
    observe : is told of every value that enters a channel

    Raises ElaborationError, naming every port that is not bound, and every channel with two readers or two writers.
    """

    def __init__(
        self, top: Module, *, schedule: int | None = None, observe: Callable[[Event], None] | None = None
    ) -> None:
        self._observe = observe
        self._random = None if schedule is None else random.Random(schedule)
        self._transfers = 0
        self._elaborate(top)
        started = [_Running(name, function()) for module in top.walk() for name, function in module.processes]
        self._ready: deque[tuple[_Running, object]] = deque((running, None) for running in started)
        self._readers: dict[Channel[Any], _Running] = {}
        self._writers: dict[Channel[Any], _Running] = {}

    def run(self) -> None:
        """Run to quiescence: every process has ended or waits for more work.

        Raises Deadlock if one is in the middle of something, and whatever a process raises.
        """
        while self._ready:
            if self._random is not None:
                self._ready.rotate(-self._random.randrange(len(self._ready)))
            running, value = self._ready.popleft()
            self._step(running, value)
        stuck = [
            f"{running.name} {_WORDS[running.wait.waiting]} {running.wait.port.path}"
            for waiting in (self._readers, self._writers)
            for running in waiting.values()
            if running.wait is not None and running.wait.waiting is not _Waiting.ACCEPT
        ]
        if stuck:
            raise Deadlock(f"nothing can move: {'; '.join(sorted(stuck))}")

    def _elaborate(self, top: Module) -> None:
        faults = []
        for module in top.walk():
            for port in module.ports:
                if isinstance(port.bound, Channel):
                    port.bound.reader = port.bound.writer = None
                    port.bound.values.clear()  # of an earlier run that ended in an error
        inner = {port.bound for module in top.walk() for port in module.ports if isinstance(port.bound, _Port)}
        for module in top.walk():
            faults += [f"{socket.path} is not bound" for socket in module.sockets if not socket.is_bound]
            for port in module.ports:
                try:
                    channel = port.channel
                except ElaborationError:
                    faults.append(f"{port.path} is not bound")
                    continue
                if port in inner:  # it only stands for the port of a module inside
                    continue
                end = "reader" if isinstance(port, In) else "writer"
                other = getattr(channel, end)
                if other is not None:
                    faults.append(f"{port.path} is a second {end} of {channel.name}, beside {other.path}")
                setattr(channel, end, port)
        if faults:
            raise ElaborationError(f"every port must be bound to a channel of its own: {'; '.join(faults)}")

    def _step(self, running: "_Running", value: object) -> None:
        """Resume a process until it must wait."""
        while True:
            try:
                wait = running.generator.send(value)
            except StopIteration:
                return
            if not isinstance(wait, _Wait):
                raise TypeError(f"{running.name} must yield what a port's get, accept or put returns, not {wait!r}")
            running.wait = wait
            channel = wait.port.channel
            if wait.waiting is _Waiting.PUT:
                if channel.full:
                    self._park(self._writers, channel, running)
                    return
                self._enter(running, channel, wait.value)
                value = None
                if self._random is not None:  # give way, so that a random schedule may cut in anywhere
                    self._ready.append((running, None))
                    return
            else:
                if not channel.values:
                    self._park(self._readers, channel, running)
                    return
                value = channel.values.popleft()
                self._admit(channel)

    @staticmethod
    def _park(waiting: "dict[Channel[Any], _Running]", channel: Channel[Any], running: "_Running") -> None:
        if channel in waiting:
            raise RuntimeError(f"{running.name} and {waiting[channel].name} must not share one end of {channel.name}")
        waiting[channel] = running

    def _enter(self, running: "_Running", channel: Channel[Any], value: object) -> None:
        """Put a value, and wake who waits for it."""
        channel.values.append(value)
        if self._observe is not None:
            self._observe(Event(order=self._transfers, process=running.name, channel=channel.name, value=value))
        self._transfers += 1
        reader = self._readers.pop(channel, None)
        if reader is not None:
            self._ready.append((reader, channel.values.popleft()))
            self._admit(channel)

    def _admit(self, channel: Channel[Any]) -> None:
        """Let a writer that waits for room go on."""
        writer = self._writers.pop(channel, None)
        if writer is not None:
            assert writer.wait is not None
            self._ready.append((writer, None))
            self._enter(writer, channel, writer.wait.value)


class _Waiting(Enum):
    GET = "get"
    ACCEPT = "accept"
    PUT = "put"


_WORDS = {_Waiting.GET: "waits for a value at", _Waiting.PUT: "waits for room at"}


@dataclass(frozen=True)
class _Wait:
    """What a process yields."""

    port: In[Any] | Out[Any]
    waiting: _Waiting
    value: object = None


@dataclass(eq=False)
class _Running:
    """A process under way, and what it waits for."""

    name: str
    generator: Process
    wait: _Wait | None = None
