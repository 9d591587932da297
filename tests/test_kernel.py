"""The untimed kernel: modules, ports, channels, processes, deadlock; and that a schedule cannot change a value."""

import pytest

from mxmodel.kernel import (
    Channel,
    Deadlock,
    ElaborationError,
    Event,
    In,
    Module,
    Out,
    Process,
    Simulation,
    Socket,
)


class Source(Module):
    """Puts the given integers."""

    def __init__(self, name: str, parent: Module, values: list[int]) -> None:
        super().__init__(name, parent)
        self.o: Out[int] = Out(self, "o", int)
        self.values = values
        self.process(self.run)

    def run(self) -> Process:
        for value in self.values:
            yield self.o.put(value)


class Affine(Module):
    """value * factor + the number of values seen before."""

    def __init__(self, name: str, parent: Module, factor: int) -> None:
        super().__init__(name, parent)
        self.i: In[int] = In(self, "i", int)
        self.o: Out[int] = Out(self, "o", int)
        self.factor = factor
        self.process(self.run)

    def run(self) -> Process:
        seen = 0
        while True:
            value = yield self.i.accept()
            yield self.o.put(self.factor * value + seen)
            seen += 1


class Fork(Module):
    """Every value to all of its outputs."""

    def __init__(self, name: str, parent: Module, outputs: int) -> None:
        super().__init__(name, parent)
        self.i: In[int] = In(self, "i", int)
        self.o: list[Out[int]] = [Out(self, f"o{number}", int) for number in range(outputs)]
        self.process(self.run)

    def run(self) -> Process:
        while True:
            value = yield self.i.accept()
            for port in self.o:
                yield port.put(value)


class Join(Module):
    """Takes one value of each input in turn, and keeps the tuples."""

    def __init__(self, name: str, parent: Module, inputs: int) -> None:
        super().__init__(name, parent)
        self.i: list[In[int]] = [In(self, f"i{number}", int) for number in range(inputs)]
        self.rows: list[tuple[int, ...]] = []
        self.process(self.run)

    def run(self) -> Process:
        while True:
            row = [(yield self.i[0].accept())]
            for port in self.i[1:]:
                row.append((yield port.get()))
            self.rows.append(tuple(row))


def connect(writer: Out[int], reader: In[int], *, capacity: int | None = None) -> Channel[int]:
    channel = Channel(f"{writer.path} -> {reader.path}", int, capacity=capacity)
    writer.bind(channel)
    reader.bind(channel)
    return channel


class Network(Module):
    """A source, a fork into ``width`` affine branches of differing depth, and a join."""

    def __init__(self, count: int, width: int, capacity: int | None) -> None:
        super().__init__("network")
        source = Source("source", self, list(range(count)))
        fork = Fork("fork", self, width)
        self.join = Join("join", self, width)
        connect(source.o, fork.i, capacity=capacity)
        for branch in range(width):
            port = fork.o[branch]
            for depth in range(branch + 1):
                stage = Affine(f"stage_{branch}_{depth}", self, branch + depth + 2)
                connect(port, stage.i, capacity=capacity)
                port = stage.o
            connect(port, self.join.i[branch], capacity=capacity)

    @staticmethod
    def by_hand(count: int, width: int) -> list[tuple[int, ...]]:
        rows = []
        for position in range(count):
            row = []
            for branch in range(width):
                value = position
                for depth in range(branch + 1):
                    value = (branch + depth + 2) * value + position
                row.append(value)
            rows.append(tuple(row))
        return rows


@pytest.mark.parametrize("capacity", [None, 1, 3])
def test_no_schedule_changes_a_value(capacity: int | None) -> None:
    """150 shuffled schedules of a network with fan-out, and the one first come, first served."""
    wanted = Network.by_hand(20, 4)
    schedules: list[int | None] = [None, *range(150)]
    orders = set()
    for schedule in schedules:
        network = Network(20, 4, capacity)
        events: list[Event] = []
        Simulation(network, schedule=schedule, observe=events.append).run()
        assert network.join.rows == wanted, schedule
        assert [event.order for event in events] == list(range(len(events)))
        orders.add(tuple(event.channel for event in events))
    assert len(orders) > 100, "the schedules must differ, or this shows nothing"


def test_hierarchical_names_and_ports() -> None:
    """A port of a module around stands for one inside; paths name the whole way."""

    class Wrapper(Module):
        def __init__(self, parent: Module) -> None:
            super().__init__("wrapper", parent)
            self.i: In[int] = In(self, "i", int)
            self.o: Out[int] = Out(self, "o", int)
            inner = Affine("inner", self, 10)
            inner.i.bind(self.i)
            inner.o.bind(self.o)

    top = Module("top")
    source, wrapper, join = Source("source", top, [1, 2]), Wrapper(top), Join("join", top, 1)
    connect(source.o, wrapper.i)
    connect(wrapper.o, join.i[0])
    Simulation(top).run()
    assert join.rows == [(10,), (21,)]
    assert [module.path for module in top.walk()] == [
        "top",
        "top.source",
        "top.wrapper",
        "top.wrapper.inner",
        "top.join",
    ]


def test_deadlock_names_every_process_and_port() -> None:
    """Two processes that each wait for the other first."""

    class Crossed(Module):
        def __init__(self, name: str, parent: Module) -> None:
            super().__init__(name, parent)
            self.i: In[int] = In(self, "i", int)
            self.o: Out[int] = Out(self, "o", int)
            self.process(self.run)

        def run(self) -> Process:
            value = yield self.i.get()
            yield self.o.put(value)

    top = Module("top")
    one, two = Crossed("one", top), Crossed("two", top)
    connect(one.o, two.i)
    connect(two.o, one.i)
    with pytest.raises(Deadlock) as caught:
        Simulation(top).run()
    assert str(caught.value) == (
        "nothing can move: top.one.run waits for a value at top.one.i; top.two.run waits for a value at top.two.i"
    )


def test_a_full_channel_deadlocks_and_an_empty_one_ends_the_run() -> None:
    top = Module("top")
    source, fork, join = Source("source", top, [1, 2, 3]), Fork("fork", top, 2), Join("join", top, 1)
    connect(source.o, fork.i, capacity=1)
    connect(fork.o[0], join.i[0], capacity=1)
    nobody = Channel("nobody reads", int, capacity=2)
    fork.o[1].bind(nobody)
    with pytest.raises(Deadlock, match=r"top\.fork\.run waits for room at top\.fork\.o1"):
        Simulation(top).run()
    assert list(nobody.values) == [1, 2]
    assert join.rows == [(1,), (2,), (3,)]


def test_elaboration_names_every_port_that_is_wrong() -> None:
    top = Module("top")
    source, fork, join = Source("source", top, [1]), Fork("fork", top, 1), Join("join", top, 2)
    shared = connect(source.o, fork.i)
    fork.o[0].bind(shared)
    socket: Socket[int, int] = Socket(join, "memory")
    with pytest.raises(ElaborationError) as caught:
        Simulation(top)
    text = str(caught.value)
    for fault in (
        "top.fork.o0 is a second writer of top.source.o -> top.fork.i, beside top.source.o",
        "top.join.i0 is not bound",
        "top.join.i1 is not bound",
        "top.join.memory is not bound",
    ):
        assert fault in text
    with pytest.raises(ElaborationError, match=r"top\.join\.memory must be bound"):
        socket.transport(1)


def test_bindings_are_checked() -> None:
    top = Module("top")
    source, join = Source("source", top, []), Join("join", top, 1)
    with pytest.raises(ElaborationError, match="must be bound to int, not str"):
        source.o.bind(Channel("words", str))  # type: ignore[arg-type]
    with pytest.raises(ElaborationError, match=r"a port of its own direction, not to top\.join\.i0"):
        source.o.bind(join.i[0])
    connect(source.o, join.i[0])
    with pytest.raises(ElaborationError, match=r"top\.source\.o must be bound once"):
        source.o.bind(Channel("more", int))
    with pytest.raises(ValueError, match="name must be unique in top, not 'join' again"):
        Join("join", top, 1)
    with pytest.raises(ValueError, match="capacity must be 1 or more"):
        Channel("none", int, capacity=0)
    with pytest.raises(TypeError, match=r"top\.source\.o must be given int, not str"):
        source.o.put("one")  # type: ignore[arg-type]
    socket: Socket[int, int] = Socket(top, "double")
    socket.bind(lambda value: 2 * value)
    assert socket.transport(21) == 42
    with pytest.raises(ElaborationError, match=r"top\.double must be bound once"):
        socket.bind(lambda value: value)


def test_what_a_process_raises_comes_out() -> None:
    class Faulty(Module):
        def __init__(self) -> None:
            super().__init__("faulty")
            self.process(self.run)

        def run(self) -> Process:
            raise ZeroDivisionError("on purpose")
            yield

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        Simulation(Faulty()).run()


def test_a_process_must_yield_waits_and_own_its_ports() -> None:
    class Wrong(Module):
        def __init__(self) -> None:
            super().__init__("wrong")
            self.process(self.run)

        def run(self) -> Process:
            yield 1  # type: ignore[misc]

    with pytest.raises(TypeError, match=r"wrong\.run must yield what a port's get, accept or put returns, not 1"):
        Simulation(Wrong()).run()

    top = Module("top")
    source, join = Source("source", top, []), Join("join", top, 1)
    join.process(join.run)
    connect(source.o, join.i[0])
    with pytest.raises(RuntimeError, match="must not share one end"):
        Simulation(top).run()
