"""How large the catalogue is: measured, beside a committed baseline, goals and peers, and on a page."""
