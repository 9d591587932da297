// A hand-written top: one block of 32 values in, its scale byte and the code of the first value out.
module my_quantiser (
  input  [1023:0] block,
  output [7:0]    scale,
  output [7:0]    first_code
);
  mx_shared_exponent_fp32_minus8_clamp_to_one exponent (
    .x(block),
    .scale(scale)
  );

  mx_narrow_fp32_fp8_e4m3_zero_scaled_fp32_product encoder (
    .x(block[31:0]),
    .scale(scale),
    .code(first_code)
  );
endmodule
