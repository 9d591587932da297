// The native evaluator: a netlist with mutants, read at run time, against stimulus and expected outputs.
//
//   evaluate lanes   PROGRAM INPUTS EXPECTED CASES
//   evaluate streams PROGRAM BEATS EXPECTED STALLS   (for its laws see mxtb/stream_scoreboard.py)
//
// Prints one line for every mutant, beginning with 0, the netlist as it is: its number, the place of its first
// difference or -1, and what differed. Nothing is evaluated after a mutant's first difference.
//
// PROGRAM is 32-bit little-endian words: nets, gates, flip-flops, selects, inputs, outputs, mutants; then for each gate
// kind, y, a, b, s; each flip-flop q, d; each select net, mutant; the inputs' nets; the outputs' nets. Net 0 is constant
// 0, net 1 constant 1. Gates stand in an order in which every operand has been worked out.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Gate { int32_t kind, y, a, b, s; };
struct FlipFlop { int32_t q, d; };
struct Select { int32_t net, mutant; };

template <class T> std::vector<T> read_all(const char* name) {
    std::FILE* file = std::fopen(name, "rb");
    if (!file) { std::fprintf(stderr, "cannot read %s\n", name); std::exit(3); }
    std::fseek(file, 0, SEEK_END);
    std::vector<T> data(static_cast<size_t>(std::ftell(file)) / sizeof(T));
    std::rewind(file);
    if (!data.empty() && std::fread(data.data(), sizeof(T), data.size(), file) != data.size()) std::exit(3);
    std::fclose(file);
    return data;
}

struct Program {
    int32_t nets = 0, mutants = 0;
    std::vector<Gate> gates;
    std::vector<FlipFlop> flip_flops;
    std::vector<Select> selects;
    std::vector<int32_t> inputs, outputs;

    explicit Program(const char* name) {
        const auto words = read_all<int32_t>(name);
        const int32_t* at = words.data() + 7;
        const auto take = [&at](auto& into, int32_t count) {
            into.resize(count);
            const size_t bytes = count * sizeof(into[0]);
            if (bytes) std::memcpy(into.data(), at, bytes);
            at += bytes / sizeof(int32_t);
        };
        nets = words[0];
        mutants = words[6];
        take(gates, words[1]);
        take(flip_flops, words[2]);
        take(selects, words[3]);
        take(inputs, words[4]);
        take(outputs, words[5]);
    }
};

// The nets of a program, W words of 64 independent cases each.
template <int W> struct Nets {
    const Program& program;
    std::vector<uint64_t> value;

    explicit Nets(const Program& p) : program(p), value(static_cast<size_t>(p.nets) * W) {
        for (int i = 0; i < W; ++i) at(1)[i] = ~uint64_t{0};
    }
    uint64_t* at(int32_t net) { return value.data() + static_cast<size_t>(net) * W; }
    void fill(int32_t net, bool bit) { for (int i = 0; i < W; ++i) at(net)[i] = bit ? ~uint64_t{0} : 0; }
    void select(int32_t mutant) { for (const Select& s : program.selects) fill(s.net, s.mutant == mutant); }

    void settle() {
        for (const Gate& gate : program.gates) {
            uint64_t* __restrict y = at(gate.y);
            const uint64_t *a = at(gate.a), *b = at(gate.b), *s = at(gate.s);
            switch (gate.kind) {
                case 0: for (int i = 0; i < W; ++i) y[i] = ~a[i]; break;
                case 1: for (int i = 0; i < W; ++i) y[i] = a[i] & b[i]; break;
                case 2: for (int i = 0; i < W; ++i) y[i] = a[i] | b[i]; break;
                case 3: for (int i = 0; i < W; ++i) y[i] = ~(a[i] & b[i]); break;
                case 4: for (int i = 0; i < W; ++i) y[i] = ~(a[i] | b[i]); break;
                case 5: for (int i = 0; i < W; ++i) y[i] = a[i] ^ b[i]; break;
                case 6: for (int i = 0; i < W; ++i) y[i] = ~(a[i] ^ b[i]); break;
                case 7: for (int i = 0; i < W; ++i) y[i] = a[i] & ~b[i]; break;
                case 8: for (int i = 0; i < W; ++i) y[i] = a[i] | ~b[i]; break;
                case 9: for (int i = 0; i < W; ++i) y[i] = (a[i] & ~s[i]) | (b[i] & s[i]); break;
                case 10: for (int i = 0; i < W; ++i) y[i] = a[i]; break;
                default: std::fprintf(stderr, "gate kind %d\n", gate.kind); std::exit(3);
            }
        }
    }
};

// Many cases at once; INPUTS and EXPECTED are bit planes [port bit][case], padded to whole blocks.
int lanes(const Program& program, const char* inputs_file, const char* expected_file, int64_t cases) {
    constexpr int W = 16;
    const auto inputs = read_all<uint64_t>(inputs_file), expected = read_all<uint64_t>(expected_file);
    const size_t words = expected.size() / program.outputs.size();
    if (inputs.size() != words * program.inputs.size() || words % W || static_cast<int64_t>(words) * 64 < cases) return 3;
    Nets<W> nets(program);
    for (int32_t mutant = 0; mutant <= program.mutants; ++mutant) {
        nets.select(mutant);
        int64_t first = -1;
        for (size_t word = 0; word < words && first < 0; word += W) {
            for (size_t i = 0; i < program.inputs.size(); ++i)
                std::memcpy(nets.at(program.inputs[i]), &inputs[i * words + word], W * sizeof(uint64_t));
            nets.settle();
            for (int i = 0; i < W && first < 0; ++i) {
                uint64_t wrong = 0;
                for (size_t o = 0; o < program.outputs.size(); ++o)
                    wrong |= nets.at(program.outputs[o])[i] ^ expected[o * words + word + i];
                if (!wrong) continue;
                const int64_t place = static_cast<int64_t>(word + i) * 64 + __builtin_ctzll(wrong);
                if (place < cases) first = place;  // beyond are the padding's
            }
        }
        std::printf("%d %lld %s\n", mutant, static_cast<long long>(first), first < 0 ? "none" : "value");
    }
    return 0;
}

constexpr int PATIENCE = 2000;  // cycles in which nothing moves
constexpr int QUIET = 64;       // cycles after the last beat, in which nothing may come
constexpr int FILL = 64;        // cycles that fill a stream before it is reset

// One case at a time, clocked. Inputs are the payload's bits, valid, ready, reset; outputs the payload's, ready, valid.
struct Stream {
    Nets<1> nets;
    const Program& program;
    const std::vector<uint8_t>&beats, &expected, &stalls;
    size_t in_bits, out_bits, in_bytes, out_bytes, gathers;
    std::vector<uint64_t> next;

    Stream(const Program& p, const std::vector<uint8_t>& b, const std::vector<uint8_t>& e, const std::vector<uint8_t>& s)
        : nets(p), program(p), beats(b), expected(e), stalls(s),
          in_bits(p.inputs.size() - 3), out_bits(p.outputs.size() - 2), in_bytes((in_bits + 7) / 8),
          out_bytes((out_bits + 7) / 8),
          gathers((b.size() / in_bytes) / (e.size() / out_bytes)), next(p.flip_flops.size()) {}

    void drive(const uint8_t* payload, uint8_t idle, bool valid, bool ready, bool reset) {
        for (size_t i = 0; i < in_bits; ++i)
            nets.fill(program.inputs[i], (payload ? payload[i / 8] : idle) >> (i % 8) & 1);
        nets.fill(program.inputs[in_bits], valid);
        nets.fill(program.inputs[in_bits + 1], ready);
        nets.fill(program.inputs[in_bits + 2], reset);
        nets.settle();
    }
    bool output(size_t index) { return *nets.at(program.outputs[index]) & 1; }
    void edge() {
        for (size_t i = 0; i < next.size(); ++i) next[i] = *nets.at(program.flip_flops[i].d);
        for (size_t i = 0; i < next.size(); ++i) *nets.at(program.flip_flops[i].q) = next[i];
    }
    void reset() { for (int i = 0; i < 2; ++i) { drive(nullptr, 0, false, false, true); edge(); } }

    const char* run(int32_t mutant, int64_t& cycle) {
        nets.select(mutant);
        for (const FlipFlop& f : program.flip_flops) nets.fill(f.q, false);
        reset();
        for (int i = 0; i < FILL; ++i) { drive(nullptr, 0xff, true, false, false); edge(); }
        reset();
        const size_t to_send = beats.size() / in_bytes, to_receive = expected.size() / out_bytes;
        size_t sent = 0, received = 0, drawn = 0;
        bool offering = false, stalled = false;
        std::vector<uint8_t> payload(out_bytes), held(out_bytes);
        int idle = 0;
        for (cycle = 0;; ++cycle) {
            const bool done = sent == to_send && received == to_receive;
            if (idle >= (done ? QUIET : PATIENCE)) return done ? nullptr : "beats never came";
            const size_t drawn_stalls = stalls.size() / 2;
            if (sent < to_send && !offering) offering = stalls[2 * (drawn++ % drawn_stalls)];
            const bool ready_in = stalls[2 * (static_cast<size_t>(cycle) % drawn_stalls) + 1];
            drive(offering ? &beats[sent * in_bytes] : nullptr, 0, offering, ready_in, false);
            const bool ready = output(out_bits), valid = output(out_bits + 1);
            std::memset(payload.data(), 0, out_bytes);
            for (size_t i = 0; i < out_bits; ++i) payload[i / 8] |= static_cast<uint8_t>(output(i) << (i % 8));
            if (stalled && !valid) return "valid retracted";
            if (stalled && payload != held) return "payload changed while stalled";
            stalled = valid && !ready_in;
            held = payload;
            if (offering && !ready && !(stalled && sent % gathers == gathers - 1)) return "a beat kept waiting";
            ++idle;
            if (offering && ready) { ++sent; offering = false; idle = 0; }
            if (valid && ready_in) {
                if (received == to_receive) return "a beat more";
                if (std::memcmp(payload.data(), &expected[received * out_bytes], out_bytes)) return "value";
                ++received;
                idle = 0;
            }
            edge();
        }
    }
};

int streams(const Program& program, const char* beats, const char* expected, const char* stalls) {
    const auto b = read_all<uint8_t>(beats), e = read_all<uint8_t>(expected), s = read_all<uint8_t>(stalls);
    Stream stream(program, b, e, s);
    for (int32_t mutant = 0; mutant <= program.mutants; ++mutant) {
        int64_t cycle = 0;
        const char* wrong = stream.run(mutant, cycle);
        std::printf("%d %lld %s\n", mutant, wrong ? static_cast<long long>(cycle) : -1LL, wrong ? wrong : "none");
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 6) return 3;
    const Program program(argv[2]);
    if (!std::strcmp(argv[1], "lanes")) return lanes(program, argv[3], argv[4], std::atoll(argv[5]));
    if (!std::strcmp(argv[1], "streams")) return streams(program, argv[3], argv[4], argv[5]);
    return 3;
}
