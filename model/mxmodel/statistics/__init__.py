"""What a quantisation costs: error sums, statistics of a tensor, tables and a picture."""
