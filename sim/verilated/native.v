// Floating-point units of one stage, whose results are functions of native.h. The later stages are in native.py.
// An operand enters in each cycle of load, and its result stays until the next one.

module native_add(input clk, input [31:0] a, input [31:0] b, output reg [31:0] o);
  always @(posedge clk) o <= $cpure32("native::add(", a, ", ", b, ")");
endmodule

module native_multiply(input clk, input [31:0] a, input [31:0] b, output reg [31:0] o);
  always @(posedge clk) o <= $cpure32("native::multiply(", a, ", ", b, ")");
endmodule

module native_divide(input clk, input load, input [31:0] a, input [31:0] b, output reg [31:0] o);
  always @(posedge clk) if (load) o <= $cpure32("native::divide(", a, ", ", b, ")");
endmodule

module native_square_root(input clk, input load, input [31:0] a, output reg [31:0] o);
  always @(posedge clk) if (load) o <= $cpure32("native::square_root(", a, ")");
endmodule
